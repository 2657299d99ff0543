// Data of the runs: columns of numbers, including derived ones.

const NONE = NaN;

/** Converts a column: a list with null for NaN, one number for all rows, or undefined (all NaN). */
function column(values, rows) {
  if (Array.isArray(values)) return Float64Array.from(values, (v) => (v === null ? NONE : v));
  return new Float64Array(rows).fill(values === undefined || values === null ? NONE : values);
}

function readTable(raw) {
  const rows = raw.iteration.length, table = { rows, columns: {} };
  for (const [name, values] of Object.entries(raw)) table.columns[name] = column(values, rows);
  return table;
}

/** Returns the seconds of training up to each row, which has the mean time of the iterations since the previous one. */
function secondsOfTraining(steps) {
  const { iteration, elapsed_ms: milliseconds = column(undefined, steps.rows) } = steps.columns;
  const seconds = new Float64Array(steps.rows);
  let sum = 0;
  for (let i = 0; i < steps.rows; ++i) {
    const count = iteration[i] - (i > 0 ? iteration[i - 1] : 0);
    if (Number.isFinite(milliseconds[i])) sum += (count * milliseconds[i]) / 1000;
    seconds[i] = sum;
  }
  return milliseconds.some(Number.isFinite) ? seconds : seconds.fill(NONE);
}

/** Returns the index of the last of the ascending `values` that is at most `value`, or -1. */
function lastUpTo(values, value) {
  let low = -1, high = values.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle; else high = middle;
  }
  return low;
}

/** Returns the value of column `name` of `steps` at the time of an evaluation or event at `iteration`. */
function atIteration(steps, name, iteration) {
  const row = lastUpTo(steps.columns.iteration, iteration);
  return row < 0 ? (name === "time" ? NONE : 0) : steps.columns[name][row];
}

function addPositions(run) {
  const steps = run.steps, c = steps.columns;
  c.consumed_samples ??= column(undefined, steps.rows);
  c.time ??= column(undefined, steps.rows);
  c.tokens = c.consumed_samples.map((samples) => (run.seq_length > 0 ? samples * run.seq_length : NONE));
  c.training_seconds = secondsOfTraining(steps);
  for (const table of Object.values(run.evaluations)) {
    for (const name of ["consumed_samples", "tokens", "training_seconds"])
      table.columns[name] = table.columns.iteration.map((i) => atIteration(steps, name, i));
    table.columns.time ??= column(undefined, table.rows);
  }
}

function readRuns(data) {
  return data.runs.map((raw, index) => {
    const evaluations = {};
    for (const [split, table] of Object.entries(raw.evaluations)) evaluations[split] = readTable(table);
    const run = { ...raw, index, color: `var(--run${index % 8})`, dash: ["", "6 4", "2 3", "9 3 2 3"][(index >> 3) % 4],
      steps: readTable(raw.steps), evaluations };
    addPositions(run);
    return run;
  });
}

const data = JSON.parse(document.getElementById("data").textContent);
const runs = readRuns(data);
