// Axes and curves: positions on the horizontal axis, ticks, smoothing, and thinning to the screen's resolution.

const X_AXES = {
  iteration: { label: "iteration", column: "iteration", format: formatNumber },
  samples: { label: "samples", column: "consumed_samples", format: formatNumber },
  tokens: { label: "tokens", column: "tokens", format: formatNumber },
  time: { label: "training time", column: "training_seconds", format: formatSeconds },
  date: { label: "date", column: "time", format: formatDate },
};

/** Returns about `count` round numbers within [low, high]; powers of ten if a logarithmic axis spans enough of them. */
function ticks(low, high, count, isLog) {
  if (isLog) {
    const powers = [];
    for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; ++p) powers.push(10 ** p);
    if (powers.length >= 2) return powers.filter((_, i) => i % Math.ceil(powers.length / count) === 0);
  }
  const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((f) => f * unit >= rough) ?? 10), found = [];
  for (let i = Math.ceil(low / step); i * step <= high && found.length < 4 * count; ++i)
    found.push(parseFloat((i * step).toPrecision(12)));
  return found;
}

/** Returns ticks() that are round in the unit of `format`: bytes use powers of 1024. */
function ticksFor(format, low, high, count, isLog) {
  if (format !== formatBytes || isLog) return ticks(low, high, count, isLog);
  const unit = 1024 ** Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024));
  return ticks(low / unit, high / unit, count, false).map((v) => v * unit);
}

/** Returns the exponential moving average with bias correction, so that it does not start at zero. NaN stays NaN. */
function smooth(values, weight) {
  const smoothed = new Float64Array(values.length);
  let mean = 0, share = 1;
  for (let i = 0; i < values.length; ++i) {
    if (!Number.isFinite(values[i])) { smoothed[i] = NONE; continue; }
    mean = weight * mean + (1 - weight) * values[i];
    share *= weight;
    smoothed[i] = mean / (1 - share);
  }
  return smoothed;
}

/** Returns the indices of the first, lowest, highest and last point of each pixel column, in order: a curve through
 *  them looks like one through all points. `pixel(i)` is the column of point i. Keeps NaN values, where curves break. */
function thin(ys, begin, end, pixel) {
  const kept = [];
  for (let i = begin; i < end;) {
    const column = pixel(i);
    let low = i, high = i, next = i, gap = -1;
    do {
      if (Number.isNaN(ys[next])) gap = next;
      else if (!(ys[low] <= ys[next])) low = next;
      if (ys[next] > ys[high] || Number.isNaN(ys[high])) high = next;
    } while (++next < end && pixel(next) === column);
    kept.push(...[...new Set([i, low, high, gap, next - 1])].filter((at) => at >= 0).sort((a, b) => a - b));
    i = next;
  }
  return kept;
}

/** Returns [min, max] of the finite numbers, excluding 2 % at each end if `cuts`; null if there are none. */
function rangeOf(lists, cuts, isLog) {
  const all = [];
  for (const list of lists) for (const v of list) if (Number.isFinite(v) && (!isLog || v > 0)) all.push(v);
  if (all.length === 0) return null;
  if (cuts && all.length > 20) {
    all.sort((a, b) => a - b);
    return [all[Math.floor(all.length * 0.02)], all[Math.ceil(all.length * 0.98) - 1]];
  }
  return all.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
}

/** Returns the range with a margin on both sides; never empty. */
function padded([low, high], isLog) {
  if (isLog) return low === high ? [low / 2, high * 2] : [low * (low / high) ** 0.04, high * (high / low) ** 0.04];
  const room = low === high ? Math.abs(low) / 10 || 1 : (high - low) * 0.04;
  return [low - room, high + room];
}

/** Returns a function from [low, high] to pixels [begin, end]; its member `back` is the inverse. */
function makeScale([low, high], [begin, end], isLog) {
  const transform = isLog ? Math.log : (v) => v, a = transform(low), b = transform(high);
  const scale = (v) => begin + ((transform(v) - a) / (b - a)) * (end - begin);
  scale.back = (p) => { const v = a + ((p - begin) / (end - begin)) * (b - a); return isLog ? Math.exp(v) : v; };
  return scale;
}
