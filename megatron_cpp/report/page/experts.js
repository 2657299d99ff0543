// Heat maps: the load of experts, and the activity of ranks over time.

/** Returns a heat map of rows by columns, from nearly transparent (lowest) to opaque (highest). */
function heatmap({ key, title, unit, rows, columns, values, format }) {
  const height = Math.max(60, Math.min(420, 18 * rows.length)), canvas = el("canvas", {});
  const figure = el("figure", { class: "card", "data-chart": key },
    el("figcaption", {}, title, el("small", {}, ` ${unit}`)), canvas, el("div", { class: "parts" }));
  const [low, high] = rangeOf(values, false, false) ?? [0, 1];
  const draw = () => {
    const width = Math.max(200, figure.clientWidth - 26), ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
    const w = width / columns.length, h = height / rows.length;
    values.forEach((row, r) => row.forEach((value, c) => {
      if (!Number.isFinite(value)) return;
      context.globalAlpha = high > low ? 0.06 + (0.94 * (value - low)) / (high - low) : 0.5;
      context.fillRect(c * w, r * h, Math.max(1, w - (w > 4 ? 1 : 0)), Math.max(1, h - (h > 4 ? 1 : 0)));
    }));
    figure.lastChild.replaceChildren(el("span", {}, `lowest ${format(low)}, highest ${format(high)}`));
  };
  canvas.addEventListener("pointermove", (event) => {
    const r = Math.floor((event.offsetY / canvas.clientHeight) * rows.length);
    const c = Math.floor((event.offsetX / canvas.clientWidth) * columns.length);
    if (values[r]?.[c] === undefined) return hideTooltip();
    showTooltip(event, [el("div", {}, `${rows[r]}, ${columns[c]}`, el("b", {}, format(values[r][c])))]);
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  return { figure, draw };
}

function expertMap(run) {
  const loads = run.experts.map(({ tokens }) => {
    const mean = tokens.reduce((sum, n) => sum + (n ?? 0), 0) / tokens.length;
    return tokens.map((n) => (n === null ? NONE : n / mean));
  });
  const most = Math.max(1, ...loads.map((row) => row.length));
  return heatmap({ key: `experts-${run.index}`, title: "Load of experts", unit: "relative to the mean of the layer, last reported step",
    rows: run.experts.map(({ layer }) => `layer ${layer}`),
    columns: Array.from({ length: most }, (_, expert) => `expert ${expert}`), values: loads, format: formatNumber });
}

function expertsSection(content, drawn) {
  const having = runs.filter((run) => run.experts.some((layer) => layer.tokens.length > 0));
  if (having.length === 0) return;
  const maps = having.map(expertMap);
  content.append(el("h2", {}, "Experts"), el("div", { class: "grid" }, having.map((run, i) =>
    el("div", {}, el("h3", {}, swatch(run.color), ` ${run.name}`), maps[i].figure))));
  drawn.push(...maps);
}
