// Settings of the user, their controls, and assembly of the page.

/** Settings, stored in the URL so that they survive a reload and can be shared. */
class State {
  constructor(redraw) {
    Object.assign(this, { x: "iteration", smoothing: 0.6, log: false, cuts: false, zoom: null, hidden: new Set() });
    this.redraw = redraw;
    this.read();
  }

  axis() { return X_AXES[this.x]; }
  isShown(run) { return !this.hidden.has(run.index); }

  read() {
    const given = new URLSearchParams(location.hash.slice(1)), smoothing = parseFloat(given.get("smoothing"));
    if (given.get("x") in X_AXES) this.x = given.get("x");
    if (smoothing >= 0 && smoothing < 1) this.smoothing = smoothing;
    this.log = given.get("log") === "1";
    this.cuts = given.get("cuts") === "1";
    const zoom = (given.get("zoom") ?? "").split(",").map(parseFloat);
    if (zoom.length === 2 && zoom[0] < zoom[1]) this.zoom = zoom;
    for (const index of (given.get("hidden") ?? "").split(",")) if (index !== "") this.hidden.add(Number(index));
  }

  set(changes) {
    if (changes.x && changes.x !== this.x) changes.zoom = null;
    Object.assign(this, changes);
    const words = new URLSearchParams({ x: this.x, smoothing: this.smoothing });
    if (this.log) words.set("log", "1");
    if (this.cuts) words.set("cuts", "1");
    if (this.zoom) words.set("zoom", this.zoom.map((v) => v.toPrecision(8)).join(","));
    if (this.hidden.size > 0) words.set("hidden", [...this.hidden].join(","));
    history.replaceState(null, "", `#${words}`);
    this.redraw();
  }
}

function makeControls(state) {
  const choice = el("select", { onchange: (event) => state.set({ x: event.target.value }) },
    Object.entries(X_AXES).map(([key, axis]) => el("option", { value: key, selected: key === state.x }, axis.label)));
  const slider = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing,
    oninput: (event) => state.set({ smoothing: parseFloat(event.target.value) }) });
  const box = (key, text) => el("label", {}, el("input", { type: "checkbox", checked: state[key],
    onchange: (event) => state.set({ [key]: event.target.checked }) }), text);
  const whole = el("button", { type: "button", onclick: () => state.set({ zoom: null }) }, "Full run");
  const controls = document.getElementById("controls");
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.append(el("label", {}, "by", choice), el("label", {}, "smoothing", slider), box("log", "logarithmic"),
    box("cuts", "clip outliers"), whole, el("span", { class: "quiet" }, "Drag over a chart to zoom."));
}

function makeLegend(state) {
  document.getElementById("legend").append(...runs.map((run) => el("label", {}, el("input", { type: "checkbox",
    checked: state.isShown(run), onchange: (event) => {
      const hidden = new Set(state.hidden);
      if (event.target.checked) hidden.delete(run.index); else hidden.add(run.index);
      state.set({ hidden });
    } }), swatch(run.color), run.name)));
}

function makePage() {
  const content = document.getElementById("content"), drawn = [];
  const state = new State(() => charts.forEach((chart) => chart.draw()));
  const charts = chartSpecs(state).map((spec) => new Chart(spec, state));
  makeControls(state);
  makeLegend(state);
  content.replaceChildren();
  overviewSection(content);
  content.append(el("h2", {}, "Curves"), el("div", { class: "grid" }, charts.map((chart) => chart.figure)));
  samplesSection(content);
  ranksSection(content, drawn);
  expertsSection(content, drawn);
  eventsSection(content);
  configSection(content);
  pipelineSection(content);
  content.append(el("p", { class: "quiet" }, `Made by ${data.program}.`));
  const drawAll = () => [...charts, ...drawn].forEach((chart) => chart.draw());
  drawAll();
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

const began = performance.now();
makePage();
document.body.dataset.milliseconds = Math.round(performance.now() - began);
