// Text parts of the page: overview, text samples, events, configurations, and the pipeline schedule.

const lastFinite = (values = []) => values.findLast(Number.isFinite) ?? NONE;
function median(values = []) {
  const known = [...values].filter(Number.isFinite).sort((a, b) => a - b);
  return known.length > 0 ? known[known.length >> 1] : NONE;
}
const sum = (values = []) => values.reduce((all, v) => all + (Number.isFinite(v) ? v : 0), 0);
const minimum = (values = []) => values.reduce((low, v) => (v < low ? v : low), Infinity);

const table = (head, rows) => el("div", { class: "card scroll" }, el("table", {},
  el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))), el("tbody", {}, rows)));
const numberCell = (text) => el("td", { class: "number" }, text);
const runCell = (run) => el("td", {}, swatch(run.color), ` ${run.name}`);

/** Returns the lowest loss on each validation set with its name, if any; truncated if there are many. */
function bestValidation(run) {
  const bests = Object.keys(run.evaluations).filter((split) => split.startsWith("validation")).sort().map((split) => {
    const best = minimum(run.evaluations[split].columns.lm_loss), set = split.slice("validation-".length);
    return `${set ? `${set} ` : ""}${Number.isFinite(best) ? formatNumber(best) : "–"}`;
  });
  return bests.length > 6 ? `${bests.slice(0, 6).join(", ")}, ...` : bests.join(", ") || "–";
}

function overviewRow(run) {
  const c = run.steps.columns, start = run.starts[run.starts.length - 1] ?? {}, done = lastFinite(c.iteration);
  return el("tr", {}, runCell(run),
    numberCell(`${formatNumber(done)}${start.train_iters > 0 ? ` of ${formatNumber(start.train_iters)}` : ""}`),
    numberCell(formatNumber(lastFinite(c.tokens))), numberCell(formatNumber(lastFinite(c.lm_loss))),
    numberCell(bestValidation(run)), numberCell(formatNumber(median(c.tokens_per_second))),
    numberCell(formatPercent(median(c.mfu))), numberCell(formatSeconds(lastFinite(c.training_seconds))),
    numberCell(formatNumber(sum(c.skipped_iterations))), numberCell(String(Math.max(0, run.starts.length - 1))),
    numberCell(formatNumber(start.world_size)), el("td", {}, [start.device, start.host].filter(Boolean).join(", ")));
}

function notesOf(run) {
  const notes = [];
  if (run.steps.rows === 0) notes.push("has no iteration yet");
  if (run.unreadable_lines > 0) notes.push(`${run.unreadable_lines} of its lines could not be read`);
  return notes.map((note) => el("p", { class: "quiet" }, `${run.name}: ${note}.`));
}

function overviewSection(content) {
  content.append(el("h2", {}, "Overview"), table(["run", "iterations", "tokens", "loss", "best validation loss",
    "tokens/s (median)", "MFU (median)", "training time", "skipped", "resumed", "ranks", "on"], runs.map(overviewRow)),
    ...runs.flatMap(notesOf));
}

function samplesSection(content) {
  const having = runs.filter((run) => run.samples.length > 0);
  if (having.length === 0) return;
  content.append(el("h2", {}, "Samples"));
  for (const run of having) {
    const blocks = run.samples.slice().reverse().map((sample) => el("div", {},
      el("div", { class: "quiet" }, `iteration ${sample.iteration}`), el("pre", {}, el("b", {}, sample.prompt), sample.text)));
    content.append(el("h3", {}, swatch(run.color), ` ${run.name}`), el("div", { class: "card scroll" }, blocks));
  }
}

function eventRows(run) {
  const starts = run.starts.map((start, i) => ({ ...start, kind: i === 0 ? "start" : "resume",
    text: `${i === 0 ? "begins" : "resumes"} after iteration ${start.iteration}` +
      (start.world_size > 0 ? ` on ${start.world_size} ${start.world_size === 1 ? "rank" : "ranks"} of ${start.host}: ${start.program}` : "") }));
  const order = (event) => (Number.isFinite(event.time) && event.time !== null ? event.time : -Infinity);
  return [...starts, ...run.events].map((event) => ({ ...event, run })).sort((a, b) => order(a) - order(b));
}

function eventsSection(content) {
  const kMaxRows = 1000, all = runs.flatMap(eventRows), kinds = [...new Set(all.map((event) => event.kind))].sort();
  if (all.length === 0) return;
  const body = el("div", {}), hidden = new Set();
  const show = () => {
    const chosen = all.filter((event) => !hidden.has(event.kind)), shown = chosen.slice(-kMaxRows).reverse();
    body.replaceChildren(table(["run", "iteration", "when", "what", ""], shown.map((event) => el("tr", {}, runCell(event.run),
      numberCell(formatNumber(event.iteration)), el("td", {}, formatDate(event.time ?? NONE)), el("td", {}, event.kind),
      el("td", { class: "text" }, event.text)))),
      chosen.length > kMaxRows ? el("p", { class: "quiet" }, `The last ${kMaxRows} of ${chosen.length}.`) : "");
  };
  const boxes = kinds.map((kind) => el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => {
    if (event.target.checked) hidden.delete(kind); else hidden.add(kind);
    show();
  } }), ` ${kind}`, ` (${all.filter((event) => event.kind === kind).length})`));
  content.append(el("h2", {}, "Events"), el("div", { class: "parts" }, boxes), body);
  show();
}

/** Returns each distinct configuration of every run and the iteration at which it starts. */
function configurations() {
  return runs.flatMap((run) => {
    const different = run.starts.filter((start, i) => i === 0 ||
      JSON.stringify(start.config) !== JSON.stringify(run.starts[i - 1].config));
    return different.map((start) => ({ run, keys: new Map(start.config),
      name: different.length > 1 ? `${run.name} after iteration ${start.iteration}` : run.name }));
  }).filter((config) => config.keys.size > 0);
}

function configTable(configs, keys) {
  return table(["key", ...configs.map((config) => config.name)], keys.map((key) => el("tr", {}, el("td", { class: "key" }, key),
    configs.map((config) => el("td", { class: "value" }, config.keys.get(key) ?? "–")))));
}

function configSection(content) {
  const configs = configurations();
  if (configs.length === 0) return;
  const keys = [...new Set(configs.flatMap((config) => [...config.keys.keys()]))];
  const different = keys.filter((key) => configs.some((config) => config.keys.get(key) !== configs[0].keys.get(key)));
  content.append(el("h2", {}, "Configuration"));
  if (configs.length > 1)
    content.append(different.length > 0 ? configTable(configs, different) : el("p", {}, "All configurations are the same."));
  content.append(el("details", {}, el("summary", {}, `All ${keys.length} keys`), configTable(configs, keys)));
}

function pipelineSection(content) {
  const having = runs.filter((run) => run.layout.pipeline.length > 0);
  if (having.length === 0) return;
  content.append(el("h2", {}, "Pipeline"));
  for (const run of having) {
    const drawing = run.layout.pipeline[0], frame = el("div", { class: "card scroll pipeline", "data-chart": `pipeline-${run.index}` });
    frame.innerHTML = drawing.svg;  // generated by this program from numbers only
    content.append(el("h3", {}, swatch(run.color), ` ${run.name}`), el("p", { class: "quiet" }, drawing.caption), frame);
  }
}
