// Nodes, versions and moves as tables and lists.

import { moveSign, sign } from "./signs.js";
import { age, bytesText, counted, figureText, make, numberText, timeText, withCode } from "./text.js";

function table(names, rows) {
  const head = names.map(([name, kind]) => make("th", { scope: "col", class: kind }, name));
  const body = rows.map(({ cells, given }) =>
    make("tr", given ?? {}, cells.map((cell, at) => make("td", { class: names[at][1], "data-label": names[at][0] }, ...[cell].flat()))));
  return make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body));
}

export function nodesTable(state) {
  if (!state.nodes.length) {
    return make("p", { class: "soft" }, state.registry ? `Nodes are unknown: ${state.registry}` : "No nodes are registered.");
  }
  const names = [["node"], ["state"], ["answers with"], ["behind the pointer"], ["learned up to"], ["could answer with"], ["last beat"], ["says"]];
  if (!state.is_live) names[4] = ["age of its version"];
  return table(names, state.nodes.map((node) => ({ cells: [
    make("strong", {}, node.name),
    make("span", { class: `state ${node.is_gone ? "gone" : node.state}` }, node.is_gone ? "silent" : node.state),
    node.active ? String(node.active) : "–",
    lag(node),
    age(state.is_live ? node.watermark_ms ?? node.written_ms : node.written_ms, { after: " ago" }),
    node.staged.join(", "),
    beat(node),
    node.said,
  ] })));
}

function lag(node) {
  if (node.versions_ahead) return make("span", { class: "wrong" }, `${counted(node.versions_ahead, "version")} ahead`);
  if (node.versions_behind) return make("span", { class: "wrong" }, counted(node.versions_behind, "version"));
  if (node.moves_behind) return make("span", { class: "mild" }, counted(node.moves_behind, "move"));
  return "no";
}

function beat(node) {
  const said = node.is_gone ? "silent" : node.is_late ? "late" : "";
  return make("span", { class: node.is_gone ? "wrong" : node.is_late ? "mild" : null }, age(node.wall_ms, { after: said ? ` ago, ${said}` : " ago" }));
}

export function workersTable({ error, help, members }) {
  if (error) return make("p", { class: "soft" }, ...withCode(`Workers are unknown: ${error}${help ? `; ${help}` : ""}`));
  if (!members.length) return make("p", { class: "soft" }, "No process learns: training waits for a worker.");
  const names = [["worker"], ["slices learned", "number"], ["time of a slice", "number"], ["holds now", "number"]];
  return table(names, members.map((one) => ({ cells: [
    make("span", {}, make("strong", {}, one.name), one.name === "leader" ? ", the trainer" : ""),
    numberText(one.slices),
    one.slices ? `${(one.slice_s * 1000).toFixed(1)} ms` : "–",
    counted(one.held, "slice"),
  ] })));
}

// How many learn, since when some have been missing, and how old these figures are.
export function workersSaid({ error, wanted, members, short_since_ms: shortMs, asked_ms: askedMs }) {
  if (error) return [];
  const count = shortMs ? [make("span", { class: "mild" }, `${members.length} of ${wanted} learn, at least one has been missing for `, age(shortMs))]
    : [`${members.length} ${wanted ? `of ${wanted} ` : ""}learn`];
  return [...count, "; asked ", age(askedMs, { after: " ago" })];
}

export function versionsTable(state, { chosen, figure, choose, all, more }) {
  if (!state.versions.length) return [make("p", { class: "soft" }, "No version exists yet.")];
  const at = state.figures.indexOf(figure);
  const shown = [...state.versions].reverse().slice(0, all ? undefined : 12);
  const names = [["version"], ["state"], [figureName(figure), "number"], ["rows", "number"], ["size", "number"], ["age", "number"], ["nodes"]];
  const rows = shown.map((one) => ({
    given: { class: one.version === chosen ? "chosen" : null },
    cells: [
      make("button", { class: "link", type: "button", data: { key: `v${one.version}` }, "aria-pressed": String(one.version === chosen), on: { click: () => choose(one.version) } }, String(one.version)),
      sign(one.standing, one.state),
      figureText(one.figures[at], figure),
      numberText(one.rows),
      bytesText(one.bytes),
      age(one.written_ms),
      one.nodes.join(", "),
    ],
  }));
  const left = state.versions.length - shown.length;
  const button = left > 0 || all
    ? make("button", { class: "quiet more-button", type: "button", data: { key: "more" }, on: { click: more } }, all ? "Fewer" : `${counted(left, "older version")}`)
    : null;
  return [table(names, rows), button];
}

const COUNTS = {
  auc: "AUC", mae: "MAE", labels_learned: "labels learned", rows: "rows set", bytes: "bytes",
  retrieval_hit_100: "hit rate, top 100", retrieval_popular_100: "hit rate, popular 100",
  vectors_changed: "vectors changed", library_items: "items in the library",
};

export function figureName(name) {
  return COUNTS[name] ?? name.replace(/^validation\./, "").replace(/\.auc$/, " AUC").replace(/\.log_loss$/, " log loss").replace(/\.(mae|rmse)$/, (_, kind) => ` ${kind.toUpperCase()}`).replaceAll(".", " ");
}

const DONE = {
  promote: (move) => `promoted ${move.active}`,
  rollback: (move) => `rolled back to ${move.active}${move.from && move.from !== move.active ? ` from ${move.from}` : ""}`,
  hold: (move) => `held at ${move.active}`,
  release: (move) => `released, at ${move.active}`,
  canary: (move) => `tries ${move.canary} on ${Math.round(move.share * 1000) / 10} %`,
  shadow: (move) => `tries ${move.canary} in shadow on ${Math.round(move.share * 1000) / 10} %`,
  floor: () => "raised the floor",
  move: (move) => `moved to ${move.active ?? "none"}`,
};

// Moves, newest first; a publisher's promotions one after the other are one line.
export function grouped(moves) {
  const found = [];
  for (const move of moves) {
    const last = found.at(-1);
    const isPlain = move.what === "promote" && !move.reason;
    if (isPlain && last?.isPlain && last.moves[0].by === move.by) last.moves.push(move);
    else found.push({ isPlain, moves: [move] });
  }
  return found;
}

export function movesList(state) {
  if (!state.moves.length) return make("p", { class: "soft" }, "The pointer has not moved yet.");
  const lines = grouped(state.moves).map(({ isPlain, moves }) => {
    const [newest, oldest] = [moves[0], moves.at(-1)];
    const said = moves.length > 1 ? `promoted ${oldest.active} to ${newest.active}, in ${moves.length} moves` : DONE[newest.what](newest);
    const who = `${newest.by || "somebody"}${newest.reason ? `: ${newest.reason}` : ""}`;
    return make("li", { class: isPlain ? "plain" : null, title: `move ${newest.seq}, ${timeText(newest.wall_ms)} UTC` },
      moveSign(newest.what),
      make("span", { class: "said" }, said),
      make("span", { class: "when" }, age(newest.wall_ms, { after: " ago" })),
      make("span", { class: "who" }, `by ${who}`));
  });
  const left = state.moves_left > 0 ? make("p", { class: "soft" }, `${counted(state.moves_left, "older move")} not shown.`) : null;
  return make("div", { class: "log", data: { scroll: 1 }, tabindex: "0", role: "region", "aria-label": "Moves, newest first" }, make("ul", {}, lines), left);
}
