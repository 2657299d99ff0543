// Creation of page elements and formatting of numbers. Text is inserted only as text nodes, never as markup.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const swatch = (color) => el("span", { class: "swatch", style: `background: ${color}` });

/** Formats 1234567 as "1.235M" and 0.00012 as "1.2e-4". */
function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(3).replace(/\.?0+e/, "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "K"]]) {
    const divisor = unit === 1e4 ? 1e3 : unit;
    if (size >= unit) return parseFloat((value / divisor).toPrecision(4)) + letter;
  }
  return String(parseFloat(value.toPrecision(5)));
}

function formatBytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  return `${parseFloat(value.toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

const formatPercent = (value) => (Number.isFinite(value) ? `${parseFloat((100 * value).toPrecision(3))} %` : "–");

function formatSeconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 60) return `${parseFloat(value.toPrecision(3))}s`;
  const minutes = Math.floor(value / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  const two = (n) => String(n).padStart(2, "0");
  if (days > 0) return `${days}d${two(hours % 24)}h`;
  return hours > 0 ? `${hours}h${two(minutes % 60)}m` : `${minutes}m${two(Math.floor(value % 60))}s`;
}

const formatMilliseconds = (value) => (value < 1000 ? `${formatNumber(value)} ms` : formatSeconds(value / 1000));

/** Formats seconds since 1970 in the user's time zone: "2026-01-31 23:59:59". */
function formatDate(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const date = new Date(1000 * seconds), two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
