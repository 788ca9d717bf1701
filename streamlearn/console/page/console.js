// The page: asks the console how things are, again and again, and draws what it says.

import { drawChart, fittingRange, nearest, RANGES } from "./chart.js";
import { isOpen, openMove, openToken } from "./dialog.js";
import { look, Refused, token } from "./link.js";
import { oneVersion } from "./one.js";
import { dot, flag, picture, STANDINGS } from "./signs.js";
import { figureName, movesList, nodesTable, versionsTable, workersSaid, workersTable } from "./tables.js";
import { age, ageText, counted, figureText, make, refill, timeText, withCode } from "./text.js";

const at = (id) => document.getElementById(id);
const THEMES = ["system", "light", "dark"];
const DETAILS_MAX = 50;
const page = { state: null, told: null, chosen: null, follows: true, figure: null, picked: false, range: null, all: false, laid: null, offMs: 0, heardMs: 0, details: new Map(), drawn: {} };

const nowMs = () => Date.now() + page.offMs;

async function poll() {
  let pauseMs = 1_000;
  try {
    const told = await look("/api/state");
    page.offMs = told.now_ms - Date.now();
    page.heardMs = nowMs();
    pauseMs = Math.max(250, told.refresh_s * 1000);
    page.told = told;
    page.failed = null;
    if (told.state) show(told.state);
    showPulse();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    page.failed = error;
    pauseMs = error.status === 401 ? 60_000 : 2_000;
    if (error.status === 401 && !isOpen()) openToken(again);
    showPulse();
  } finally {
    clearTimeout(page.timer);
    // What nobody looks at need not be asked for.
    if (!document.hidden) page.timer = setTimeout(poll, pauseMs);
  }
}

function again() {
  clearTimeout(page.timer);
  poll();
}

function showPulse() {
  const failed = page.failed;
  const lateMs = page.state ? nowMs() - page.state.at_ms : 0;
  const stuck = page.told?.error;
  const isLate = Boolean(failed || stuck || lateMs > 15_000);
  const since = page.state ? `; the state shown is ${ageText(lateMs)} old` : "";
  const said = failed ? `${failed.message}${since}` : stuck ? `${stuck}${since}` : "live";
  if (at("pulse").textContent !== said) at("pulse").textContent = said;
  at("pulse").title = failed?.help ?? page.told?.help ?? "";
  at("pulse").classList.toggle("late", isLate);
  at("main").classList.toggle("stale", isLate);
  if (!page.state && isLate) at("said").textContent = "No state has arrived yet";
}

// Draws a part anew when what it is made of has changed.
function part(name, made, drawn) {
  const key = JSON.stringify(made);
  if (page.drawn[name] === key) return;
  page.drawn[name] = key;
  drawn();
}

function show(state) {
  page.state = state;
  const known = state.versions.some((one) => one.version === page.chosen);
  if (page.follows || !known) page.chosen = state.pointer.active ?? state.versions.at(-1)?.version ?? null;
  if (!page.picked || !state.figures.includes(page.figure)) page.figure = state.figures[0] ?? null;
  page.range ??= state.versions.length ? fittingRange(state.versions) : null;
  document.title = `${state.headline.level === "good" ? "" : state.headline.level === "bad" ? "✕ " : "! "}${state.model} · streamlearn`;
  at("model").textContent = state.model;
  showTop(state);
  showRest(state);
  tick();
}

function showTop(state) {
  const mayMove = page.told.may_move;
  part("access", mayMove, () => {
    at("access").textContent = mayMove ? "moves need the token" : "read-only";
    at("access").title = mayMove ? "" : "The console was started without --token-file: use the command line to move the pointer.";
    at("token").hidden = !mayMove;
  });
  part("headline", [state.headline, state.pointer, state.may, mayMove], () => {
    at("headline").className = `headline ${state.headline.level}`;
    if (at("said").textContent !== state.headline.said) at("said").textContent = state.headline.said;
    refill(at("moved"), ...lastMove(state));
    refill(at("moves"), ...mainMoves(state, mayMove));
  });
  part("trouble", state.trouble, () => refill(at("trouble"), state.trouble.map((one) =>
    make("li", { class: one.level },
      make("span", { class: "what" }, one.what),
      make("span", { class: "said" }, one.said),
      make("span", { class: "when soft" }, one.since_ms ? age(one.since_ms) : ""),
      one.help ? make("span", { class: "help" }, ...withCode(one.help)) : null))));
  part("tiles", [state.pointer, state.nodes, state.versions.at(-1), state.versions_left, state.registry, state.late], () => refill(at("tiles"), tiles(state)));
  part("features", state.features, () => { at("features").textContent = featuresText(state.features); });
}

function featuresText(features) {
  if (!features) return "";
  if (features.error) return `Computed features: ${features.error}`;
  const newest = features.newest_ms ? `the newest folded interaction is of ${timeText(features.newest_ms)}` : "none is folded yet";
  return `Computed features in ${features.store}: ${counted(features.behind, "message")} of interactions left to fold, ${newest}`;
}

function lastMove(state) {
  const { pointer } = state;
  if (pointer.active === null) return ["The first version that passes the judge will be promoted."];
  return [`Last moved by ${pointer.by || "somebody"}, `, age(pointer.wall_ms, { after: " ago" }), pointer.reason ? `: ${pointer.reason}` : ""];
}

function mainMoves(state, mayMove) {
  const { rollback, hold, release, rewind } = state.may;
  const found = [];
  if (state.pointer.held) {
    found.push(["release", {}, release.refused ? "Release" : `Release, to ${release.version}…`, "", release]);
  } else {
    found.push(["hold", {}, "Hold…", "quiet", hold]);
  }
  // Where a release is refused, a rewind leads out.
  found.push(["rewind", { to: rewind.version }, "Rewind training…", release.refused && !state.requests.length ? "" : "quiet", rewind]);
  found.push(["rollback", { to: rollback.version }, rollback.refused ? "Roll back" : `Roll back to ${rollback.version}…`, "danger", rollback]);
  if (!mayMove) {
    return rollback.refused ? [] : [make("code", { class: "run" }, `streamlearn rollback ${state.place} --to ${rollback.version}${state.options}`)];
  }
  return found.map(([what, asked, words, kind, may]) =>
    make("button", { type: "button", class: kind, disabled: Boolean(may.refused), title: may.refused ? `${may.refused}; ${may.help}` : null, data: { key: `main-${what}` }, on: { click: () => ask(what, asked) } }, words));
}

function ask(what, asked) {
  openMove(page.state, what, asked, again);
}

function tile(name, value, more, { late } = {}) {
  const mark = late ? make("span", { class: "mark", role: "img", "aria-label": "late" }, " !") : null;
  return make("div", { class: late ? "tile late" : "tile" }, make("dt", {}, name), make("dd", { class: "value" }, ...[value].flat(), mark), make("dd", { class: "more" }, ...[more].flat()));
}

function qualityText(version) {
  const [name, value] = version.auc === null && version.mae !== null ? ["MAE", version.mae] : ["AUC", version.auc];
  return value === null ? "no AUC yet, " : `${name} ${figureText(value)}, `;
}

function tiles(state) {
  const served = state.versions.find((one) => one.version === state.pointer.active);
  const newest = state.versions.at(-1);
  const here = state.nodes.filter((node) => !node.is_gone);
  const ready = here.filter((node) => node.state === "ready").length;
  const lag = (one) => (state.is_live ? one?.watermark_ms ?? one?.written_ms : one?.written_ms);
  const against = newest && served && newest !== served ? `${newest.version - served.version === 1 ? "one" : counted(state.versions.filter((one) => one.version > served.version).length, "version")} after the served one` : "it is the served one";
  return [
    tile("Served", state.pointer.active === null ? "none" : String(state.pointer.active), served ? [qualityText(served), age(served.written_ms, { after: " old" })] : "no version is active"),
    tile(state.is_live ? "Answers include events up to" : "Age of the served version", served ? age(lag(served), { after: state.is_live ? " ago" : "" }) : "–", state.is_live ? "by event time" : "topics use event time", { late: state.late.active }),
    tile("Nodes ready", state.registry ? "unknown" : `${ready} of ${state.nodes.length}`, state.registry ? "the registry does not answer" : nodeWords(state, here), { late: Boolean(state.registry) || ready < state.nodes.length || state.nodes.some((node) => node.is_late) }),
    tile("Newest version", newest ? String(newest.version) : "none", newest ? [age(newest.written_ms, { after: state.late.newest ? " old, late; " : " old, " }), against] : "no version was published", { late: state.late.newest }),
  ];
}

function nodeWords(state, here) {
  if (!here.length) return "no node sends a heartbeat";
  const silent = state.nodes.length - here.length;
  const late = here.filter((node) => node.is_late).length;
  const behind = here.filter((node) => node.moves_behind || node.versions_ahead).length;
  const said = [silent && `${counted(silent, "node")} silent`, late && `${counted(late, "heartbeat")} late`, behind && `${counted(behind, "node")} behind the pointer`];
  return said.filter(Boolean).join(", ") || "all are at the pointer";
}

function showRest(state) {
  part("window", state.first_window, () => { at("window").textContent = state.first_window && `No AUC yet: ${state.first_window}.`; });
  part("controls", [state.figures, page.figure, page.range], () => {
    refill(at("figure"), state.figures.map((name) => make("option", { value: name, selected: name === page.figure }, figureName(name))));
    at("figure").disabled = state.figures.length < 2;
    refill(at("range"), RANGES.map(([name]) => make("button", { type: "button", "aria-pressed": String(name === page.range), data: { key: name }, on: { click: () => { page.range = name; redraw(); } } }, name)));
  });
  part("legend", [...new Set(state.versions.map((one) => one.standing))].sort(), legend);
  showChart();
  part("one", [page.chosen, state.versions.find((one) => one.version === page.chosen), page.details.get(page.chosen), page.told.may_move, state.pointer], showOne);
  part("nodes", [state.nodes, state.registry], () => refill(at("nodes"), nodesTable(state)));
  part("workers", state.workers, () => {
    at("workers-panel").hidden = !state.workers;
    if (!state.workers) return;
    refill(at("workers-said"), ...workersSaid(state.workers));
    refill(at("workers"), workersTable(state.workers));
  });
  part("versions", [state.versions, page.chosen, page.all, page.figure], () => {
    at("versions-said").textContent = state.versions_left ? `of ${counted(state.versions_left + state.versions.length, "version")}` : counted(state.versions.length, "version");
    refill(at("versions"), ...versionsTable(state, { chosen: page.chosen, figure: page.figure, choose, all: page.all, more: () => { page.all = !page.all; redraw(); } }));
  });
  part("log", [state.moves, state.moves_left], () => refill(at("log"), movesList(state)));
}

function redraw() {
  if (page.state) show(page.state);
}

function legend() {
  const there = new Set(page.state.versions.map((one) => one.standing));
  const signs = Object.keys(STANDINGS).filter((one) => there.has(one)).map((one) => make("li", { title: STANDINGS[one] }, picture(dot(one, 8, 8, 4)), one));
  const flags = ["rollback", "hold", "release"].map((what) => make("li", {}, picture(flag(what, 8, 8)), what));
  for (const one of flags) one.classList.add("sign");
  refill(at("legend"), signs, flags);
}

function showChart() {
  const place = at("chart");
  page.laid = drawChart(place, page.state, { figure: page.figure, range: page.range, chosen: page.chosen, nowMs: nowMs() });
  const number = page.laid.points.findIndex((point) => point.one.version === page.chosen);
  place.setAttribute("aria-valuemax", Math.max(0, page.laid.points.length - 1));
  place.setAttribute("aria-valuenow", Math.max(0, number));
  const mine = page.laid.points[number]?.one;
  place.setAttribute("aria-valuetext", mine ? words(mine) : "no version");
}

function words(one) {
  const value = one.figures[page.state.figures.indexOf(page.figure)];
  const said = value === null || value === undefined ? "" : `, ${figureName(page.figure)} ${figureText(value, page.figure)}`;
  return `version ${one.version}, ${one.state}${said}, ${ageText(nowMs() - one.written_ms)} old`;
}

function showOne() {
  const one = page.state.versions.find((other) => other.version === page.chosen);
  if (!one) return refill(at("one"));
  const details = page.details.get(one.version);
  if (!details || (details.verdict === null && one.outcome !== null)) fetchDetails(one.version);
  refill(at("one"), ...oneVersion(page.state, one, page.details.get(one.version), { mayMove: page.told.may_move, ask }));
}

async function fetchDetails(version) {
  if (page.asking === version) return;
  page.asking = version;
  if (page.details.size >= DETAILS_MAX) page.details.delete(page.details.keys().next().value);
  try {
    page.details.set(version, await look(`/api/versions/${version}`));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    page.details.set(version, { error: error.message });
    setTimeout(() => page.details.delete(version), 10_000);
  }
  page.asking = null;
  redraw();
}

function choose(version) {
  page.chosen = version;
  page.follows = version === page.state.pointer.active;
  redraw();
}

function step(event) {
  const points = page.laid?.points ?? [];
  const here = points.findIndex((point) => point.one.version === page.chosen);
  const to = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, PageUp: here + 10, PageDown: here - 10, Home: 0, End: points.length - 1 }[event.key];
  if (to === undefined || !points.length) return;
  event.preventDefault();
  choose(points[Math.min(Math.max(to, 0), points.length - 1)].one.version);
}

function hover(event) {
  const box = at("chart").getBoundingClientRect();
  const point = page.laid && nearest(page.laid, event.clientX - box.left);
  at("chart").querySelector(".hint")?.remove();
  if (!point || event.type === "pointerleave") return;
  const hint = make("div", { class: "hint", "aria-hidden": "true" }, words(point.one));
  at("chart").append(hint);
  const half = hint.offsetWidth / 2;
  hint.style.left = `${Math.min(Math.max(point.x, half), Math.max(half, box.width - half))}px`;
  hint.style.top = `${point.y}px`;
}

function tick() {
  const now = nowMs();
  for (const one of document.querySelectorAll("time[data-ms]")) {
    const ms = Math.max(0, now - Number(one.dataset.ms));
    const said = `${one.dataset.before}${ageText(ms)}${one.dataset.after}`;
    if (one.textContent !== said) one.textContent = said;
  }
}

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  at("theme").textContent = `Theme: ${name}`;
  localStorage.setItem("streamlearn-theme", name);
}

theme(THEMES.includes(localStorage.getItem("streamlearn-theme")) ? localStorage.getItem("streamlearn-theme") : "system");
at("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("streamlearn-theme")) + 1) % THEMES.length]));
at("token").addEventListener("click", () => openToken(again));
at("figure").addEventListener("change", (event) => { page.figure = event.target.value; page.picked = true; redraw(); });
at("chart").addEventListener("keydown", step);
at("chart").addEventListener("pointermove", hover);
at("chart").addEventListener("pointerleave", hover);
at("chart").addEventListener("click", (event) => {
  const point = page.laid && nearest(page.laid, event.clientX - at("chart").getBoundingClientRect().left);
  if (point) choose(point.one.version);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
new ResizeObserver(() => { if (page.state) showChart(); }).observe(at("timeline"));
setInterval(() => { tick(); showPulse(); }, 1_000);
poll();
