// Appended to a page by run.sh: uses every control and compares the page's results with independently computed values.
// Stores "good", or the problems, in the body's data-verdict.
"use strict";
const problems = [];
const expect = (condition, text) => { if (!condition) problems.push(text); };
const near = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));

function checkNumbers() {
  const smoothed = smooth(Float64Array.from([1, 1, NaN, 1, 1]), 0.9);
  expect(smoothed.every((v, i) => (i === 2 ? Number.isNaN(v) : near(v, 1))), "smoothing moves a constant");
  const two = smooth(Float64Array.from([1, 3]), 0.5);
  expect(near(two[0], 1) && near(two[1], (0.5 * 0.5 * 1 + 0.5 * 3) / 0.75), `smoothing of 1, 3: ${two}`);
  const ys = Float64Array.from({ length: 5000 }, (_, i) => (i === 2345 ? NaN : Math.sin(i * 12.9898) * 43758.5453 % 1));
  const kept = thin(ys, 0, ys.length, (i) => Math.floor(i / 50));
  expect(kept.length <= 600 && kept.every((at, i) => i === 0 || at > kept[i - 1]), "thinned points are not few and in order");
  for (let bin = 0; bin < 100; ++bin) {
    const all = [...ys.slice(50 * bin, 50 * bin + 50)].filter(Number.isFinite);
    const seen = kept.filter((at) => Math.floor(at / 50) === bin).map((at) => ys[at]).filter(Number.isFinite);
    expect(Math.max(...all) === Math.max(...seen) && Math.min(...all) === Math.min(...seen), `column ${bin} lost an end`);
  }
  expect(kept.includes(2345), "a gap is lost");
  const found = ticks(0.13, 9.7, 5, false);
  expect(found.length >= 3 && found.every((v) => v >= 0.13 && v <= 9.7), `ticks ${found}`);
  expect(ticks(0.5, 2000, 5, true).join() === "1,10,100,1000", `logarithmic ticks ${ticks(0.5, 2000, 5, true)}`);
  expect(lastUpTo([1, 3, 5], 4) === 1 && lastUpTo([1, 3, 5], 0) === -1 && lastUpTo([], 1) === -1, "lastUpTo");
  expect([1234567, 0.00012, 12, 65536, 0].map(formatNumber).join() === "1.235M,1.2e-4,12,65.54K,0",
    `numbers ${[1234567, 0.00012, 12, 65536, 0].map(formatNumber)}`);
}

function expectDrawn(when) {
  const figures = [...document.querySelectorAll("[data-chart]")];
  expect(figures.length > 0 || runs.every((run) => run.steps.rows === 0), `${when}: no chart`);
  for (const figure of figures) {
    const canvas = figure.querySelector("canvas");
    const marks = canvas ? canvas.width : figure.querySelectorAll("path.main, rect, text").length;
    expect(marks > 0, `${when}: ${figure.dataset.chart} is empty`);
    expect(!/NaN|undefined|Infinity/.test(figure.outerHTML), `${when}: ${figure.dataset.chart} has places that are none`);
  }
}

function use(element, value, type) {
  if (element.type === "checkbox") element.checked = value; else element.value = value;
  element.dispatchEvent(new Event(type, { bubbles: true }));
}

function point(target, type, x) {
  const at = target.getBoundingClientRect();
  target.dispatchEvent(new PointerEvent(type, { clientX: at.left + x, clientY: at.top + 80, bubbles: true }));
}

function checkControls() {
  const select = document.querySelector("#controls select"), slider = document.querySelector("#controls input[type=range]");
  const boxes = [...document.querySelectorAll("#controls input[type=checkbox]")];
  for (const key of Object.keys(X_AXES)) {
    use(select, key, "change");
    for (const value of [0, 0.99]) { use(slider, value, "input"); expectDrawn(`by ${key}, smoothing ${value}`); }
  }
  use(select, "iteration", "change");
  for (const box of boxes) { use(box, true, "change"); expectDrawn("with a box checked"); }
  for (const box of boxes) use(box, false, "change");
  for (const box of document.querySelectorAll("#legend input")) use(box, false, "change");
  expectDrawn("with all runs hidden");
  for (const box of document.querySelectorAll("#legend input")) use(box, true, "change");
}

function checkPointer() {
  for (const plot of document.querySelectorAll("[data-chart] svg, [data-chart] canvas"))
    for (const x of [0, 100, 300, 5000]) point(plot, "pointermove", x);
  const loss = document.querySelector("[data-chart=loss] svg");
  const labels = () => loss.textContent, before = labels();
  point(loss, "pointerdown", 150);
  point(loss, "pointermove", 250);
  point(loss, "pointerup", 250);
  expectDrawn("looking closer");
  if (runs.some((run) => run.steps.rows > 20)) expect(labels() !== before, "dragging changes nothing");
  document.querySelector("#controls button").click();
  expect(labels() === before, "the whole run does not come back");
  point(loss, "pointerleave", 0);
}

/** What text of runs may have become: elements that the page does not make. */
function checkMarkup() {
  expect(document.querySelectorAll("img, main script, main b script, iframe").length === 0, "text became markup");
}

function checkHistory() {
  const resumed = runs.find((run) => run.name.endsWith("resumed"));
  if (!resumed) return;
  const c = resumed.steps.columns;
  expect(resumed.steps.rows === 101, `resumed has ${resumed.steps.rows} rows`);
  expect(c.iteration.every((v, i) => v === i + 1), "iterations are not each there once");
  const truth = (i, shift) => 3 + shift + 6 / Math.sqrt(i) + 0.2 * Math.sin(i * 12.9898) * Math.sin(i * 4.1414);
  expect(Math.abs(c.lm_loss[49] - truth(50, 0.3)) < 1e-4, "before the resume the first losses stand");
  expect(Math.abs(c.lm_loss[50] - truth(51, 0.4)) < 1e-4, "after the resume the later losses stand");
  expect(c.tokens[9] === 10 * 8 * 64, `tokens ${c.tokens[9]}`);
  expect(Math.abs(c.training_seconds[1] - (500 + 40 * Math.sin(0.02) + 500 + 40 * Math.sin(0.04)) / 1000) < 1e-3, "seconds");
  expect(resumed.unreadable_lines === 1, "the line that was cut off");
  const own = [...document.querySelectorAll("figure")].filter((figure) => figure.innerText.includes('Loss: validation-a/"b) <i>'));
  expect(own.length === 1 && own[0].querySelectorAll("circle").length === 2, "the set's own curve, from iteration 0 on");
  const text = document.body.innerText;
  for (const words of ["roll back", "resume", "0.002", "<b><\/script><script>alert(1)<\/script>", "Memory by class",
    "rank 0 computes 85 % of its time", '3.5, a/"b) <i> 3.25'])
    expect(text.includes(words), `the page does not say ${words}`);
}

try {
  checkNumbers();
  expectDrawn("at first");
  checkHistory();
  checkMarkup();
  checkControls();
  checkPointer();
  dispatchEvent(new Event("resize"));
  expectDrawn("after another size");
} catch (error) {
  problems.push(`${error}\n${error.stack}`);
}
document.body.dataset.verdict = problems.length === 0 ? "good" : [...new Set(problems)].slice(0, 20).join("; ");
