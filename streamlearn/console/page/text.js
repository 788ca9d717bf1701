// Quantities as people read them, and elements made without HTML in strings: what a store or a node says stays text.

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];
const SVG = "http://www.w3.org/2000/svg";

export function ageText(ms) {
  for (const [name, unit] of UNITS) {
    if (ms >= unit) return `${Math.floor(ms / unit)} ${name}`;
  }
  return "0 s";
}

export function bytesText(count) {
  if (count < 1024) return `${count} B`;
  let size = count / 1024;
  let unit = 0;
  while (size >= 1024 && unit < 3) {
    size /= 1024;
    unit += 1;
  }
  return `${size.toFixed(1)} ${["KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export function numberText(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

export function figureText(value, name = "") {
  if (value === null || value === undefined) return "–";
  if (name === "bytes") return bytesText(Math.round(value));
  if (/(^|\.)(rows|samples|labels_learned|vectors_changed|library_items)$/.test(name)) return numberText(Math.round(value));
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : value.toFixed(4);
}

export function timeText(ms, long = true) {
  if (Math.abs(ms) > 8.64e15) return `${ms} ms`; // an event's time may be more than a Date can be
  const said = new Date(ms).toISOString();
  return long ? said.slice(0, 19).replace("T", " ") : said.slice(11, 16);
}

export function counted(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

export function make(tag, given = {}, ...children) {
  return filled(document.createElement(tag), given, children);
}

export function draw(tag, given = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), given, children);
}

function filled(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, heard] of Object.entries(value)) element.addEventListener(event, heard);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== ""));
  return element;
}

// An age that goes on counting: `tick` of console.js writes it anew every second.
export function age(ms, { before = "", after = "", wordless = false } = {}) {
  if (!ms) return make("span", {}, "–");
  return make("time", { datetime: new Date(ms).toISOString(), title: `${timeText(ms)} UTC`, data: { ms, before, after, wordless: wordless ? 1 : "" } });
}

// Words in which `commands` stand between backticks.
export function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));
}

// Puts new content into its place, and the keyboard's focus back where it was.
export function refill(place, ...content) {
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = [...place.querySelectorAll("[data-scroll]")].map((one) => one.scrollTop);
  place.replaceChildren(...content.flat().filter(Boolean));
  [...place.querySelectorAll("[data-scroll]")].forEach((one, at) => { one.scrollTop = scrolled[at] ?? 0; });
  if (held) place.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
}
