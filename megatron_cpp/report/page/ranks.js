// Resource use of each rank: memory by class, time, and stragglers.

/** Memory classes in stacking order, from the bottom up. */
const MEMORY_CLASSES = ["parameters", "gradients", "optimizer state", "activations", "workspace"];

/** Returns a stacked bar chart with one bar per name. `parts` is [{label, values, color}]. */
function stackChart({ key, title, unit, names, parts, format }) {
  const plot = svg("svg", { class: "plot", height: PLOT_HEIGHT, role: "img", "aria-label": title });
  const figure = el("figure", { class: "card", "data-chart": key },
    el("figcaption", {}, title, el("small", {}, ` ${unit}`)), plot,
    el("div", { class: "parts" }, parts.map((part) => el("span", {}, swatch(part.color), part.label))));
  const total = (i) => parts.reduce((sum, part) => sum + (part.values[i] || 0), 0);
  const draw = () => {
    const width = Math.max(200, plot.clientWidth || 440), bottom = PLOT_HEIGHT - MARGIN.bottom;
    const x = makeScale([0, names.length], [MARGIN.left, width - MARGIN.right], false);
    const most = names.reduce((high, _, i) => Math.max(high, total(i)), 0) || 1;
    const y = makeScale([0, most * 1.04], [bottom, MARGIN.top], false);
    plot.replaceChildren();
    for (const v of ticksFor(format, 0, most * 1.04, 5, false))
      plot.append(svg("line", { class: "rule", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(v), y2: y(v) }),
        svg("text", { x: MARGIN.left - 6, y: y(v) + 4, "text-anchor": "end" }, format(v)));
    for (const i of shownColumns(names.length, width - MARGIN.left - MARGIN.right, total)) {
      let sum = 0;
      const room = Math.max(1, (x(1) - x(0)) * 0.82);
      for (const part of parts) {
        const value = part.values[i] || 0;
        plot.append(svg("rect", { x: x(i) + (x(1) - x(0) - room) / 2, width: room, y: y(sum + value),
          height: Math.max(0, y(sum) - y(sum + value)), fill: part.color }));
        sum += value;
      }
    }
    for (const v of ticks(0, names.length - 0.5, Math.floor(width / 60), false).filter(Number.isInteger))
      plot.append(svg("text", { x: (x(v) + x(v + 1)) / 2, y: bottom + 16, "text-anchor": "middle" }, String(v)));
  };
  plot.addEventListener("pointermove", (event) => {
    const width = Math.max(200, plot.clientWidth || 440);
    const i = Math.floor(((event.offsetX - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * names.length);
    if (i < 0 || i >= names.length) return hideTooltip();
    showTooltip(event, [el("div", {}, names[i]), ...parts.map((part) =>
      el("div", {}, swatch(part.color), part.label, el("b", {}, format(part.values[i] ?? NONE))))]);
  });
  plot.addEventListener("pointerleave", hideTooltip);
  return { figure, draw };
}

/** Returns the bars to draw: all of them, or the highest of those that share a pixel. */
function shownColumns(count, pixels, height) {
  const highest = new Map();
  for (let i = 0; i < count; ++i) {
    const pixel = count <= pixels ? i : Math.floor((i * pixels) / count);
    if (!highest.has(pixel) || height(i) > height(highest.get(pixel))) highest.set(pixel, i);
  }
  return [...highest.values()];
}

/** Returns the fraction of time that each rank of a record computes. */
const computing = ({ bubble = [], exposed_communication: exposed = [] }) =>
  Array.from(bubble, (share, i) => 1 - share - (exposed[i] ?? 0));

/** Describes the rank that computes longest, for which the others wait. Returns null for fewer than two ranks. */
function straggler(run, shares) {
  const known = shares.filter(Number.isFinite);
  if (known.length < 2) return null;
  const mean = known.reduce((sum, share) => sum + share, 0) / known.length, most = Math.max(...known);
  if (!(most - mean > 0.05)) return "No straggler: the busiest rank computes " +
    `${formatPercent(most)} of the time, the mean is ${formatPercent(mean)}.`;
  return `${rankName(run, shares.indexOf(most))} computes ${formatPercent(most)} of its time, the mean over ranks is ` +
    `${formatPercent(mean)}: the others wait for it.`;
}

const rankName = (run, rank) => run.layout.rank_names[rank] ?? `rank ${rank}`;

function rankCharts(run) {
  const last = run.ranks[run.ranks.length - 1], numbers = last.numbers, peaks = numbers.peak_memory_bytes ?? [];
  const names = Array.from(peaks, (_, rank) => rankName(run, rank)), charts = [];
  const key = (what) => `${what}-${run.index}`, unit = `by rank, at iteration ${last.iteration}`;
  const orderOf = ([name]) => (MEMORY_CLASSES.includes(name) ? MEMORY_CLASSES.indexOf(name) : MEMORY_CLASSES.length);
  const classes = Object.entries(run.peak_by_class).filter(([, values]) => values.some((v) => v > 0))
    .sort((a, b) => orderOf(a) - orderOf(b));
  const parts = classes.map(([label, values], i) => ({ label, values, color: `var(--part${i % 6})` }));
  if (parts.length > 0)
    charts.push(stackChart({ key: key("memory"), title: "Memory by class", unit: `peak of each, ${unit}`, names, parts,
      format: formatBytes }));
  if (names.length < 2) return charts;
  const shares = computing(numbers);
  charts.push(stackChart({ key: key("time"), title: "Where the time goes", unit, names, format: formatPercent, parts: [
    { label: "computes", values: shares, color: "var(--part0)" },
    { label: "waits for other pipeline stages", values: numbers.bubble ?? [], color: "var(--part1)" },
    { label: "other communication", values: numbers.exposed_communication ?? [], color: "var(--part3)" }] }));
  if (numbers.compute_ms)
    charts.push(stackChart({ key: key("compute"), title: "Computing", unit: `in an iteration, ${unit}`, names,
      format: formatMilliseconds, parts: [{ label: "computes", values: numbers.compute_ms, color: "var(--part0)" }] }));
  if (run.ranks.length > 1)
    charts.push(heatmap({ key: key("stragglers"), title: "Computing over time", unit: "share of the time, by rank and iteration",
      rows: names, columns: run.ranks.map((record) => `iteration ${record.iteration}`),
      values: names.map((_, rank) => run.ranks.map((record) => computing(record.numbers)[rank] ?? NONE)),
      format: formatPercent }));
  return charts;
}

function ranksSection(content, drawn) {
  const having = runs.filter((run) => run.ranks.length > 0);
  if (having.length === 0) return;
  content.append(el("h2", {}, "Ranks"));
  for (const run of having) {
    const charts = rankCharts(run), shares = computing(run.ranks[run.ranks.length - 1].numbers);
    const text = straggler(run, shares);
    content.append(el("h3", {}, swatch(run.color), ` ${run.name}`), text ? el("p", {}, text) : "",
      el("div", { class: "grid" }, charts.map((chart) => chart.figure)));
    drawn.push(...charts);
  }
}
