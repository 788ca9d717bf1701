// The version that is chosen: its figures beside those of the one that is served, what the judge found, what may be done.

import { sign } from "./signs.js";
import { figureName } from "./tables.js";
import { age, bytesText, counted, figureText, make, numberText, timeText } from "./text.js";

const OWN_LINES = ["samples", "rows", "bytes"];

export function oneVersion(state, one, details, { mayMove, ask }) {
  return [
    make("div", {},
      make("h3", {}, `Version ${one.version}`, sign(one.standing, one.state)),
      buttons(state, one, mayMove, ask),
      facts(state, one)),
    make("div", {}, make("h3", {}, "Findings of the judge"), judged(one, details)),
  ];
}

function buttons(state, one, mayMove, ask) {
  const found = [];
  const active = state.pointer.active;
  const isNewer = active === null || one.version > active;
  const mayAccept = ["tainted", "rejected"].includes(one.standing);
  const mayPromote = ["passed", "unscored", "accepted", "canary", "shadow"].includes(one.standing) && (isNewer || state.pointer.held);
  if (one.may_go_back) found.push(["rollback", { to: one.version }, `Roll back to ${one.version}…`, "danger", `rollback ${state.place} --to ${one.version}${state.options}`]);
  if (mayPromote) found.push(["promote", { version: one.version }, `Promote ${one.version}…`, "quiet", `promote ${state.place} ${one.version}${state.options}`]);
  if (mayAccept && (isNewer || state.pointer.held)) {
    found.push(["promote", { version: one.version, accept: true }, `Accept ${one.version} and serve it…`, "quiet", `promote ${state.place} ${one.version} --accept${state.options}`]);
  }
  if (one.may_rewind) found.push(["rewind", { to: one.version }, `Rewind training to ${one.version}…`, "quiet", `rewind ${state.place} --to ${one.version}${state.options}`]);
  if (!found.length) return null;
  if (!mayMove) return make("div", { class: "buttons" }, found.map(([, , , , command]) => make("code", { class: "run" }, `streamlearn ${command}`)));
  return make("div", { class: "buttons" }, found.map(([what, asked, words, kind]) =>
    make("button", { type: "button", class: kind, data: { key: `do-${what}-${asked.accept ? 1 : 0}` }, on: { click: () => ask(what, asked) } }, words)));
}

function facts(state, one) {
  const served = state.versions.find((other) => other.version === state.pointer.active);
  const lines = [
    ["written", [age(one.written_ms, { after: " ago" }), one.written_ms ? `, ${timeText(one.written_ms)}` : ""]],
    ["learned up to", one.watermark_ms ? [timeText(one.watermark_ms)] : ["–"]],
    ...state.figures.slice(0, 8).map((name, at) => [name, at]).filter(([name]) => !OWN_LINES.includes(name)).map(([name, at]) =>
      [figureName(name), [compared(name, one.figures[at], served?.figures[at], one === served)]]),
    ["samples", [numberText(one.samples === null ? null : Math.round(one.samples))]],
    ["rows", [`${numberText(one.rows)} set, ${numberText(one.gone)} removed`]],
    ["size", [bytesText(one.bytes)]],
    ["kind", [`${one.kind}, run ${one.run}${one.parent ? `, after ${one.parent}` : ""}`]],
    ["nodes", [one.nodes.length ? one.nodes.join(", ") : "no node answers with it"]],
    ...(one.lacks ? [["problem", [make("span", { class: "wrong" }, one.lacks)]]] : []),
  ];
  return make("dl", {}, lines.flatMap(([name, said]) => [make("dt", {}, name), make("dd", {}, ...said)]));
}

function compared(name, value, served, isServed) {
  const said = figureText(value, name);
  if (isServed || value === null || served === null || served === undefined) return said;
  const off = value - served;
  return `${said}  (${off >= 0 ? "+" : "−"}${figureText(Math.abs(off), name)} compared with the served one)`;
}

function found(finding) {
  const [how, label, sign] = !finding.is_checked ? ["unchecked", "not checked", "–"] : finding.is_ok ? ["ok", "ok", "✓"] : ["refused", "refused", "✕"];
  return make("span", { class: how, role: "img", "aria-label": label, title: label }, sign);
}

function judged(one, details) {
  if (details === undefined) return make("p", { class: "soft" }, "reading");
  if (details.error) return make("p", { class: "wrong" }, details.error);
  const verdict = details.verdict;
  if (!verdict) return make("p", { class: "soft" }, "The judge has not finished yet.");
  const against = verdict.against ? `, against ${verdict.against.version}` : "";
  const checks = verdict.findings.map((finding) =>
    make("li", {},
      found(finding),
      make("span", {}, make("strong", {}, finding.check), " ", make("span", { class: "said" }, finding.said))));
  return make("div", {},
    make("p", { class: verdict.outcome === "rejected" ? "wrong" : "soft" }, `${verdict.outcome}${against}${verdict.findings.length ? "" : ", without findings"}`),
    make("ul", { class: "checks" }, checks),
    ...(details.notes ?? []).map((note) => make("p", {}, `${note.text} (${note.by}, ${timeText(note.wall_ms)})`)),
    make("p", { class: "soft" }, `${counted(details.files.reduce((sum, file) => sum + file.files, 0), "file")} in `, make("code", {}, details.folder)));
}
