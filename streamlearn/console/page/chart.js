// The time line: versions by when they were written and how well they were judged, and below them which one was served.

import { dot, flag } from "./signs.js";
import { draw, figureText, make, timeText } from "./text.js";

const MINUTE = 60_000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080].map((minutes) => minutes * MINUTE);
export const RANGES = [["30 min", 30 * MINUTE], ["2 h", 120 * MINUTE], ["12 h", 720 * MINUTE], ["all", Infinity]];
const MARGIN = { left: 52, right: 16, top: 14 };
const HEIGHT = { plot: 170, gap: 26, strip: 22, axis: 22 };

// The shortest stretch of time that has enough of the newest versions in it.
export function fittingRange(versions) {
  const newest = versions.at(-1)?.written_ms ?? 0;
  const enough = Math.min(30, versions.length);
  const fits = ([, ms]) => versions.filter((one) => one.written_ms >= newest - ms).length >= enough;
  return (RANGES.find(fits) ?? RANGES.at(-1))[0];
}

// What is drawn where; the chart's only arithmetic.
export function layOut(state, figure, range, width, nowMs) {
  const span = new Map(RANGES).get(range) ?? Infinity;
  const written = state.versions.filter((one) => one.written_ms);
  const newest = written.at(-1)?.written_ms ?? nowMs;
  const shown = written.filter((one) => one.written_ms >= newest - span);
  const first = shown[0]?.written_ms ?? nowMs - MINUTE;
  const length = Math.max(newest - first, MINUTE / 2);
  // A long silence is shown as one, but does not press the versions together.
  const end = Math.min(Math.max(nowMs, newest), newest + length / 3);
  const begin = first - length * 0.02;
  const right = width - MARGIN.right;
  const x = (ms) => MARGIN.left + ((Math.min(Math.max(ms, begin), end) - begin) / (end - begin)) * (right - MARGIN.left);
  const at = state.figures.indexOf(figure);
  const values = shown.map((one) => one.figures[at] ?? null);
  const said = values.filter((one) => one !== null);
  const [low, high] = said.length ? stretched(Math.min(...said), Math.max(...said)) : [0, 1];
  const bottom = MARGIN.top + HEIGHT.plot;
  const y = (value) => (value === null ? bottom - 8 : bottom - ((value - low) / (high - low)) * HEIGHT.plot);
  const points = shown.map((one, number) => ({ one, x: x(one.written_ms), y: y(values[number]), value: values[number] }));
  return { points, x, y, begin, end, low, high, right, bottom, hasFigure: said.length > 0, isNow: end >= nowMs };
}

function stretched(low, high) {
  const room = (high - low || Math.abs(high) * 0.02 || 0.01) * 0.12;
  return [low < 0 ? low - room : Math.max(0, low - room), high + room];
}

export function drawChart(place, state, { figure, range, chosen, nowMs }) {
  const width = Math.max(280, Math.floor(place.clientWidth));
  const laid = layOut(state, figure, range, width, nowMs);
  const top = laid.bottom + HEIGHT.gap;
  const height = top + HEIGHT.strip + HEIGHT.axis;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  svg.append(...grid(laid, figure), ...times(laid, top + HEIGHT.strip, width), ...served(state.moves, laid, top));
  svg.append(draw("text", { x: MARGIN.left - 8, y: top + 15, "text-anchor": "end" }, "served"));
  if (laid.hasFigure) svg.append(trend(laid.points));
  const size = laid.points.length > 140 ? 2.6 : 3.6;
  const mine = laid.points.find((point) => point.one.version === chosen);
  if (mine) svg.append(draw("line", { class: "chosen", x1: mine.x, x2: mine.x, y1: MARGIN.top - 6, y2: top + HEIGHT.strip }));
  // The served one lies on top of its neighbours.
  const rank = (point) => (["active", "canary", "shadow", "rejected"].includes(point.one.standing) ? 1 : 0);
  for (const point of [...laid.points].sort((one, other) => rank(one) - rank(other))) {
    svg.append(dot(point.one.standing, point.x, point.y, size));
  }
  if (mine) svg.append(draw("circle", { class: "ring", cx: mine.x, cy: mine.y, r: size + 6 }));
  place.replaceChildren(svg);
  if (!laid.points.length) place.append(make("p", { class: "soft" }, "There is no version yet."));
  return laid;
}

function trend(points) {
  const said = points.filter((point) => point.value !== null && !["rejected", "incomplete"].includes(point.one.standing));
  return draw("path", { class: "trend", d: said.map((point, at) => `${at ? "L" : "M"}${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join("") });
}

function grid(laid, figure) {
  if (!laid.hasFigure) return [draw("text", { x: MARGIN.left, y: MARGIN.top + 10 }, "no version of this time has this figure")];
  const values = [0.5, 0.1, 0.9].map((share) => laid.low + share * (laid.high - laid.low));
  // Counts that hardly differ are the same words.
  const lines = new Map(values.map((value) => [figureText(value, figure), laid.y(value)]).reverse());
  return [...lines].flatMap(([words, y]) => [
    draw("line", { class: "grid", x1: MARGIN.left, x2: laid.right, y1: y, y2: y }),
    draw("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, words),
  ]);
}

function times(laid, y, width) {
  const most = Math.max(2, Math.floor((width - 70) / 64));
  const step = STEPS.find((one) => (laid.end - laid.begin) / one <= most) ?? STEPS.at(-1);
  const marks = [];
  for (let ms = Math.ceil(laid.begin / step) * step; ms <= laid.end; ms += step) {
    const day = step >= 1440 * MINUTE || ms % (1440 * MINUTE) === 0;
    const words = day ? new Date(ms).toISOString().slice(5, 10) : timeText(ms, false);
    marks.push(draw("text", { x: laid.x(ms), y: y + 16, "text-anchor": "middle" }, words));
  }
  const end = laid.x(laid.end);
  if (laid.isNow) marks.push(draw("line", { class: "now", x1: end, x2: end, y1: MARGIN.top, y2: y }));
  return marks;
}

// Which version was served when: one stretch from each move that changed it to the next.
export function stretches(moves) {
  const found = [];
  for (const move of [...moves].reverse()) {
    const last = found.at(-1);
    if (last && last.version === move.active && last.held === move.held) continue;
    if (last) last.end = move.wall_ms;
    found.push({ version: move.active, held: move.held, begin: move.wall_ms, end: Infinity });
  }
  return found;
}

function served(moves, laid, top) {
  const marks = [];
  stretches(moves).forEach((one, number) => {
    const [left, right] = [laid.x(Math.max(one.begin, laid.begin)), laid.x(Math.min(one.end, laid.end))];
    if (one.version === null || one.end < laid.begin || right - left < 0.5) return;
    const kind = one.held ? "held" : number % 2 ? "other" : "";
    marks.push(draw("rect", { class: `stretch ${kind}`, x: left, y: top, width: right - left, height: HEIGHT.strip, rx: 3 }));
    const words = one.held ? `${one.version} held` : `${one.version}`;
    const fits = [words, `${one.version}`].find((text) => right - left > text.length * 7 + 10);
    if (fits) marks.push(draw("text", { class: "stretch-name", x: (left + right) / 2, y: top + 15, "text-anchor": "middle" }, fits));
  });
  for (const move of moves) {
    const shape = move.wall_ms >= laid.begin && flag(move.what, laid.x(move.wall_ms), top - 12);
    if (!shape) continue;
    const x = laid.x(move.wall_ms);
    marks.push(draw("line", { class: "flag-line", x1: x, x2: x, y1: MARGIN.top, y2: top + HEIGHT.strip }), shape);
  }
  return marks;
}

// The point nearest to a place on the chart.
export function nearest(laid, x) {
  let best = null;
  for (const point of laid.points) {
    if (best === null || Math.abs(point.x - x) < Math.abs(best.x - x)) best = point;
  }
  return best;
}
