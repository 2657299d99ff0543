// Appended to a page of `plan --html` by run.sh: checks that every chart is drawn with its marks in the right places.
// Stores "good", or the problems, in the body's data-verdict.
"use strict";
const problems = [];
const expect = (condition, text) => { if (!condition) problems.push(text); };
const begun = performance.now();
const boxes = (name) => [...document.querySelectorAll(`svg[data-chart=${name}] rect`)];
const number = (element, name) => Number(element.getAttribute(name));

for (const name of ["shares", "passes", "memory"]) {
  const chart = document.querySelector(`svg[data-chart=${name}]`);
  expect(chart && chart.getBoundingClientRect().height > 20, `${name} is not drawn`);
  expect(chart && !/NaN|inf|undefined/i.test(chart.outerHTML), `${name} has places that are none`);
}
// The bars of all ranks have the same length, without gaps or overlaps: the parts add up to the step.
const rows = new Map();
for (const box of boxes("shares")) {
  const row = rows.get(number(box, "y")) ?? [];
  row.push(box);
  rows.set(number(box, "y"), row);
}
expect(rows.size > 0, "no rank has a bar");
for (const [y, row] of rows) {
  let x = number(row[0], "x");
  for (const box of row) {
    expect(Math.abs(number(box, "x") - x) < 0.05, `a gap at ${y}, ${x}`);
    x = number(box, "x") + number(box, "width");
  }
  expect(Math.abs(x - 964) < 0.5, `the bar at ${y} ends at ${x}`);
}
// Passes are inside the time line of their rank and do not overlap.
const waits = boxes("passes").filter((box) => box.classList.contains("wait"));
expect(waits.length === rows.size, "a rank has no passes");
for (const wait of waits) {
  let end = number(wait, "x") - 0.1;
  const parts = boxes("passes").filter((box) => box.dataset.part && number(box, "y") === number(wait, "y"));
  expect(parts.length > 0, "a rank has no passes");
  for (const part of parts) {
    expect(number(part, "x") >= end - 0.1, "passes overlap");
    end = number(part, "x") + number(part, "width");
  }
  expect(end <= number(wait, "x") + number(wait, "width") + 0.2, "a pass ends after the time line");
}
const levels = [...document.querySelectorAll("svg[data-chart=memory] polygon")];
expect(levels.length === rows.size, "a rank has no memory");
expect(levels.every((level) => level.getBBox().height > 0), "a rank needs no memory");
expect([...document.querySelectorAll("rect, polygon")].every((mark) => mark.querySelector("title")), "a mark has no tooltip");
expect(document.querySelectorAll("li").length >= 3, "the legend is missing");
expect(document.documentElement.scrollWidth <= innerWidth, "the page is wider than the window");
document.body.dataset.milliseconds = Math.round(performance.now() - begun);
document.body.dataset.verdict = problems.length ? problems.slice(0, 5).join("; ") : "good";
