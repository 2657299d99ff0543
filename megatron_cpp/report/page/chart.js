// Chart of curves, redrawn whenever the user's settings change.

const MARGIN = { left: 58, right: 12, top: 8, bottom: 30 }, PLOT_HEIGHT = 250;
const tooltip = document.getElementById("tooltip");

function showTooltip(event, lines) {
  tooltip.replaceChildren(...lines);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - 16 - width : event.clientX + 16;
  tooltip.style.left = `${Math.max(4, x)}px`;
  tooltip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
}
const hideTooltip = () => { tooltip.hidden = true; };

const isFinitePoint = (point) => point.every(Number.isFinite);
const pathOf = (points) => {
  let text = "", isBroken = true;
  points.forEach(([x, y], i) => {
    if (!isFinitePoint([x, y])) { isBroken = true; return; }
    const position = `${x.toFixed(1)} ${y.toFixed(1)}`, next = points[i + 1];
    text += isBroken ? `M${position}` : `L${position}`;
    if (isBroken && !(next && isFinitePoint(next))) text += `L${position}`;  // an isolated point is drawn as a dot
    isBroken = false;
  });
  return text;
};

/** Chart of curves {run, label, xs, ys, dash, hasMarks, isExact} with ascending xs; exact curves are not smoothed. */
class Chart {
  /** `spec` is {key, title, unit, format, curves(), marks()}; `state` holds the user's settings. */
  constructor(spec, state) {
    this.spec = spec;
    this.state = state;
    this.plot = svg("svg", { class: "plot", height: PLOT_HEIGHT, role: "img", "aria-label": spec.title });
    this.figure = el("figure", { class: "card", "data-chart": spec.key },
      el("figcaption", {}, spec.title, spec.unit ? el("small", {}, ` ${spec.unit}`) : null), this.plot);
    this.plot.addEventListener("pointermove", (event) => this.hover(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("pointerdown", (event) => { this.dragFrom = event.offsetX; });
    this.plot.addEventListener("pointerup", (event) => this.zoom(event));
    this.plot.addEventListener("dblclick", () => this.state.set({ zoom: null }));
  }

  draw() {
    const { state, spec } = this, width = Math.max(200, this.plot.clientWidth || 440);
    this.curves = spec.curves().filter((curve) => state.isShown(curve.run));
    const xRange = state.zoom ?? rangeOf(this.curves.map((curve) => curve.xs), false, false);
    this.plot.replaceChildren();
    this.x = null;
    if (!xRange) return this.say(width, this.curves.length ? `no ${state.axis().label} is known` : "nothing to show");
    const whole = xRange[0] === xRange[1] ? padded(xRange, false) : xRange;
    this.x = makeScale(whole, [MARGIN.left, width - MARGIN.right], false);
    for (const curve of this.curves) this.locate(curve, whole);
    const shown = this.curves.map((curve) => curve.ys.subarray(curve.begin, curve.end));
    const yRange = rangeOf(shown, state.cuts, state.log);
    if (!yRange) return this.say(width, state.log ? "nothing above zero to show" : "nothing to show");
    this.yRange = padded(yRange, state.log);
    this.y = makeScale(this.yRange, [PLOT_HEIGHT - MARGIN.bottom, MARGIN.top], state.log);
    this.drawAxes(width, whole);
    for (const mark of spec.marks?.() ?? []) this.drawMark(mark, whole);
    const clip = `clip-${spec.key}`;
    const room = { x: MARGIN.left, y: 0, width: width - MARGIN.left - MARGIN.right, height: PLOT_HEIGHT - MARGIN.bottom + 2 };
    this.plot.append(svg("clipPath", { id: clip }, svg("rect", room)));
    this.plot.append(svg("g", { "clip-path": `url(#${clip})` }, ...this.curves.flatMap((curve) => this.paths(curve))));
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: PLOT_HEIGHT - MARGIN.bottom, visibility: "hidden" });
    this.plot.append(this.cursor);
  }

  say(width, text) {
    this.plot.append(svg("text", { x: width / 2, y: PLOT_HEIGHT / 2, "text-anchor": "middle" }, text));
  }

  /** Sets the visible range of points, plus one on each side so that the curve reaches the edge. */
  locate(curve, [low, high]) {
    curve.begin = Math.max(0, lastUpTo(curve.xs, low));
    curve.end = Math.min(curve.xs.length, lastUpTo(curve.xs, high) + 2);
  }

  drawAxes(width, xRange) {
    const bottom = PLOT_HEIGHT - MARGIN.bottom, axis = this.state.axis(), isDate = axis === X_AXES.date;
    for (const v of ticksFor(this.spec.format, ...this.yRange, 5, this.state.log)) {
      const y = this.y(v);
      this.plot.append(svg("line", { class: "rule", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        svg("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, this.spec.format(v)));
    }
    for (const v of ticks(...xRange, Math.floor(width / (isDate ? 200 : 70)), false)) {
      const x = this.x(v);
      this.plot.append(svg("line", { class: "rule", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        svg("text", { x, y: bottom + 16, "text-anchor": x > width - 30 ? "end" : "middle" }, axis.format(v)));
    }
    this.plot.append(svg("line", { class: "rule", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  }

  drawMark(mark, [low, high]) {
    if (!(mark.x >= low && mark.x <= high) || !this.state.isShown(mark.run)) return;
    const x = this.x(mark.x), line = { class: "mark", x1: x, x2: x, y1: MARGIN.top, y2: PLOT_HEIGHT - MARGIN.bottom };
    this.plot.append(svg("line", { ...line, stroke: mark.run.color }, svg("title", {}, mark.text)));
  }

  paths(curve) {
    const smoothing = curve.isExact ? 0 : this.state.smoothing, stroke = curve.run.color, parts = [];
    const line = (ys, kind) => svg("path", { class: `curve ${kind}`, stroke, "stroke-dasharray": curve.dash,
      d: pathOf(this.points(curve, ys)) });
    if (smoothing > 0) parts.push(line(curve.ys, "raw"));
    curve.shown = smoothing > 0 ? smooth(curve.ys, smoothing) : curve.ys;
    parts.push(line(curve.shown, "main"));
    if (curve.hasMarks && curve.end - curve.begin < 80) {
      for (const [cx, cy] of this.points(curve, curve.ys).filter(isFinitePoint))
        parts.push(svg("circle", { cx, cy, r: 2.6, fill: stroke }));
    }
    return parts;
  }

  points(curve, ys) {
    const pointAt = (i) => [this.x(curve.xs[i]), this.state.log && !(ys[i] > 0) ? NONE : this.y(ys[i])];
    return thin(ys, curve.begin, curve.end, (i) => Math.floor(this.x(curve.xs[i]))).map(pointAt);
  }

  hover(event) {
    if (!this.x || !this.cursor) return;
    const at = this.x.back(event.offsetX), lines = [];
    for (const curve of this.curves) {
      const before = lastUpTo(curve.xs, at), after = Math.min(before + 1, curve.xs.length - 1);
      const nearest = before < 0 || Math.abs(curve.xs[after] - at) < Math.abs(curve.xs[before] - at) ? after : before;
      if (nearest < 0) continue;
      const value = curve.shown?.[nearest] ?? curve.ys[nearest];
      lines.push(el("div", {}, swatch(curve.run.color), `${curve.label} at ${this.state.axis().format(curve.xs[nearest])}`,
        el("b", {}, this.spec.format(value))));
    }
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x1", event.offsetX);
    this.cursor.setAttribute("x2", event.offsetX);
    this.drawSelection(event.offsetX);
    if (lines.length > 0) showTooltip(event, lines.slice(0, 24));
  }

  drawSelection(to) {
    this.selection?.remove();
    if (this.dragFrom === undefined) return;
    const [x, end] = [Math.min(this.dragFrom, to), Math.max(this.dragFrom, to)];
    this.selection = svg("rect", { class: "selection", x, width: end - x, y: MARGIN.top,
      height: PLOT_HEIGHT - MARGIN.bottom - MARGIN.top });
    this.plot.append(this.selection);
  }

  leave() {
    hideTooltip();
    this.dragFrom = undefined;
    this.selection?.remove();
    this.cursor?.setAttribute("visibility", "hidden");
  }

  zoom(event) {
    const from = this.dragFrom, to = event.offsetX;
    this.dragFrom = undefined;
    this.selection?.remove();
    if (!this.x || from === undefined || Math.abs(to - from) < 5) return;
    const zoom = [this.x.back(from), this.x.back(to)].sort((a, b) => a - b);
    if (zoom[1] > zoom[0]) this.state.set({ zoom });
  }
}
