// List of charts: known columns, grouped by meaning, and all other columns of a run.

const varies = (values) => values.some((v) => Number.isFinite(v) && v !== values[0]);
const isNonZero = (values) => values.some((v) => Number.isFinite(v) && v !== 0);
const isThere = (values) => values.some(Number.isFinite);

/** Columns of steps, in page order. `when` returns whether a run's values deserve a chart; settings are not smoothed. */
const STEP_CHARTS = [
  { key: "learning_rate", title: "Learning rate", isSetting: true },
  { key: "grad_norm", title: "Gradient norm" },
  { key: "tokens_per_second", title: "Throughput", unit: "tokens/s" },
  { key: "mfu", title: "MFU", unit: "of the peak", format: formatPercent },
  { key: "tflops", title: "Speed of a device", unit: "TFLOP/s" },
  { key: "elapsed_ms", title: "Time of an iteration", format: formatMilliseconds },
  { key: "bubble", title: "Pipeline bubble", unit: "mean over ranks", format: formatPercent },
  { key: "exposed_communication", title: "Exposed communication", unit: "mean over ranks", format: formatPercent },
  { key: "peak_memory_bytes", title: "Peak memory", unit: "of the rank with the highest", format: formatBytes },
  { key: "largest_expert_load", title: "Largest expert load", unit: "over the mean" },
  { key: "load_balancing_loss", title: "Load balancing loss", when: isNonZero },
  { key: "dropped_tokens", title: "Dropped tokens", format: formatPercent, when: isNonZero },
  { key: "global_batch_size", title: "Global batch size", when: varies, isSetting: true },
  { key: "loss_scale", title: "Loss scale", when: varies, isSetting: true },
  { key: "skipped_iterations", title: "Skipped iterations", when: isNonZero },
  { key: "nan_iterations", title: "Iterations without a finite loss", when: isNonZero },
];
const NOT_CHARTED = ["iteration", "lm_loss", "consumed_samples", "tokens", "time", "training_seconds"];

function stepCurves(state, key, isExact = false) {
  return runs.filter((run) => run.steps.columns[key]).map((run) => ({
    run, label: run.name, xs: run.steps.columns[state.axis().column], ys: run.steps.columns[key], dash: run.dash,
    isExact }));
}

const isTask = (split) => split.startsWith("task-");

/** Returns the curves of a split: the loss, or the accuracy of a task. */
function evaluationCurves(state, split, label) {
  return runs.filter((run) => run.evaluations[split]).map((run) => {
    const columns = run.evaluations[split].columns;
    return { run, label: label(run), xs: columns[state.axis().column], hasMarks: true, isExact: true, dash: "5 3",
      ys: columns[isTask(split) ? "acc" : "lm_loss"] ?? column(undefined, columns.iteration.length) };
  });
}

const splits = () => [...new Set(runs.flatMap((run) => Object.keys(run.evaluations)))].sort();

/** Returns the events of a run (resume, stop, skip, ...) that are drawn as lines in the loss chart. */
function eventMarks(state) {
  const name = state.axis().column;
  return runs.flatMap((run) => {
    const starts = run.starts.filter((start) => start.iteration > 0)
      .map((start) => ({ ...start, text: `${run.name}: resumes after iteration ${start.iteration}` }));
    const events = run.events.filter((event) => !["save", "end"].includes(event.kind))
      .map((event) => ({ ...event, text: `${run.name}: ${event.text}` }));
    return [...starts, ...events].slice(0, 300)
      .map((event) => ({ run, text: event.text, x: atIteration(run.steps, name, event.iteration) }));
  });
}

function chartSpecs(state) {
  const loss = { key: "loss", title: "Loss", unit: "training; dashed: held-out texts", format: formatNumber,
    marks: () => eventMarks(state),
    curves: () => [...stepCurves(state, "lm_loss"),
      ...splits().filter((split) => !isTask(split)).flatMap((split) => evaluationCurves(state, split, (run) => `${run.name}, ${split}`))] };
  const evaluations = splits().map((split, i) => ({ key: `evaluation-${i}`,
    title: isTask(split) ? `Accuracy: ${split.slice("task-".length)}` : `Loss: ${split}`,
    format: isTask(split) ? formatPercent : formatNumber, curves: () => evaluationCurves(state, split, (run) => run.name) }));
  const known = STEP_CHARTS.map((spec) => spec.key).concat(NOT_CHARTED);
  const others = [...new Set(runs.flatMap((run) => Object.keys(run.steps.columns)))]
    .filter((key) => !known.includes(key)).map((key) => (key.startsWith("timer_")
      ? { key, title: `Time: ${key.slice("timer_".length)}`, unit: "of the slowest rank", format: formatMilliseconds }
      : { key, title: key.replaceAll("_", " ") }));
  const steps = [...STEP_CHARTS, ...others]
    .filter(({ key, when = isThere }) => runs.some((run) => run.steps.columns[key] && when(run.steps.columns[key])))
    .map((spec) => ({ format: formatNumber, ...spec, curves: () => stepCurves(state, spec.key, spec.isSetting) }));
  return [loss, ...evaluations, ...steps];
}
