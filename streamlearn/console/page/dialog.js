// The dialog in which a move is confirmed, and which says of each node how many milliseconds it took.

import { keepToken, move, Refused, token } from "./link.js";
import { make, withCode } from "./text.js";

const at = (id) => document.getElementById(id);
const NAMED = "streamlearn-by";
const FIELDS = ["to-field", "skip-field", "reason-field", "by-field", "secret-field"];

const WORDS = {
  rollback: (state, asked) => [
    `Roll back to version ${asked.to}?`,
    `Version ${asked.to} is served at once and held: nodes do not follow newer ones. Version ${left(state, asked.to)} and all newer ones are tainted until training goes back or one of them is accepted.`,
    `Roll back to ${asked.to}`,
    "danger",
  ],
  hold: (state) => [
    `Hold at version ${state.pointer.active}?`,
    "The active version stays. Newer ones are still written and judged, but nodes do not follow them until you release the pointer. No version is tainted.",
    "Hold",
    "",
  ],
  release: (state) => [
    "Follow new versions again?",
    `Version ${state.may.release.version}, the newest clean one, is served at once. Nodes then follow newer ones.`,
    "Release",
    "",
  ],
  rewind: () => [
    "Rewind training?",
    "At its next cut the trainer goes back to this version and publishes it anew, as a clean version. What nodes serve stays: release a hold after that.",
    "Rewind",
    "",
  ],
  promote: (state, asked) => [
    `${asked.accept ? "Accept" : "Promote"} version ${asked.version}?`,
    `Version ${asked.version} is served at once${asked.accept ? ", although it is tainted or was rejected; versions made from it are clean again" : ""}.${state.pointer.held ? " The hold stays." : ""}`,
    asked.accept ? "Accept and serve it" : "Promote",
    asked.accept ? "danger" : "",
  ],
};

function left(state, to) {
  return state.versions.find((one) => one.version > to)?.version ?? state.pointer.active;
}

let wanted = null;

export function openMove(state, what, asked, after) {
  const [title, said, button, kind] = WORDS[what](state, asked);
  wanted = { what, asked, after, isDone: false };
  show(title, said, button, kind, [...(what === "rewind" ? ["to-field", "skip-field"] : []), "reason-field", "by-field", ...(token() ? [] : ["secret-field"])]);
  const targets = state.versions.filter((one) => one.may_rewind).reverse();
  at("to").replaceChildren(...targets.map((one) => make("option", { value: one.version, selected: one.version === asked.to }, `${one.version}, ${one.state}`)));
  at("skip-from").value = at("skip-to").value = "";
  at("reason").value = "";
  at("reason").focus();
}

export function openToken(after) {
  wanted = { what: null, after, isDone: false };
  const title = token() ? "Change the token" : "Enter the console's token";
  show(title, "This tab keeps the token until you close it. Leave it empty to remove it.", "Keep it", "", ["secret-field"]);
  at("secret").focus();
}

function show(title, said, button, kind, fields) {
  at("dialog-title").textContent = title;
  at("dialog-said").textContent = said;
  for (const id of FIELDS) at(id).hidden = !fields.includes(id);
  at("secret").value = "";
  at("by").value = localStorage.getItem(NAMED) ?? "";
  at("outcome").replaceChildren();
  Object.assign(at("confirm"), { textContent: button, className: kind, disabled: false, hidden: false });
  at("cancel").textContent = "Cancel";
  if (!at("dialog").open) at("dialog").showModal();
}

export function isOpen() {
  return at("dialog").open;
}

async function confirmed(event) {
  event.preventDefault();
  if (wanted.isDone) return at("dialog").close();
  if (!at("secret-field").hidden) keepToken(at("secret").value.trim());
  if (wanted.what === null) {
    at("dialog").close();
    return wanted.after();
  }
  localStorage.setItem(NAMED, at("by").value);
  at("confirm").disabled = true;
  const begun = performance.now();
  const waiting = make("p", { class: "soft" }, wanted.what === "rewind" ? "Writing the request." : "Moving the pointer and waiting for nodes.");
  at("outcome").replaceChildren(waiting);
  try {
    const asked = { ...wanted.asked, ...(wanted.what === "rewind" ? rewound() : {}), reason: at("reason").value, by: at("by").value };
    finished(await move(wanted.what, asked), performance.now() - begun);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    refused(error);
  }
  wanted.after();
}

function rewound() {
  const [from, to] = [at("skip-from").value.trim(), at("skip-to").value.trim()];
  return { to: Number(at("to").value), skip: from || to ? [`${from}..${to}`] : [] };
}

function refused(error) {
  if (error.status === 401) {
    keepToken("");
    at("secret").value = "";
    at("secret-field").hidden = false;
    at("secret").focus();
  }
  at("confirm").disabled = false;
  at("outcome").replaceChildren(make("p", { class: "wrong", role: "alert" }, error.message), make("p", { class: "soft" }, ...withCode(error.help)));
}

function finished(done, tookMs) {
  wanted.isDone = true;
  at("confirm").hidden = true;
  at("cancel").textContent = "Close";
  at("cancel").focus();
  for (const id of FIELDS) at(id).hidden = true;
  if (done.lines) {
    at("dialog-title").textContent = `Training goes back to version ${done.to}`;
    at("dialog-said").textContent = "";
    at("outcome").replaceChildren(...done.lines.map((line) => make("p", {}, line)));
    return;
  }
  at("dialog-title").textContent = done.held ? `Version ${done.active} is served, and held` : `Version ${done.active} is served`;
  const tainted = done.tainted.length ? ` Tainted: ${done.tainted.slice(0, 8).join(", ")}${done.tainted.length > 8 ? ", …" : ""}.` : "";
  at("dialog-said").textContent = `Move ${done.seq} was in the store after ${done.store_ms.toFixed(1)} ms. This page got its answer after ${Math.round(tookMs)} ms.${tainted}`;
  const most = Math.max(1, ...done.acted.map((one) => one.ms));
  const lines = [
    ...done.acted.map((one) => act(one.node, "", `${one.ms.toFixed(1)} ms`, one.ms / most)),
    ...done.silent.map((one) => act(one.node, "silent", "silent", 1)),
    ...done.starting.map((name) => act(name, "starting", "starting", 0)),
  ];
  at("outcome").replaceChildren(
    make("p", { class: done.is_whole ? "" : "wrong", role: done.is_whole ? null : "alert" }, verdict(done)),
    make("ul", { class: "acts", "aria-label": "Time until each node acknowledged" }, lines));
}

function verdict(done) {
  if (!done.has_registry) return "No registry is configured: nodes follow when they next read the store.";
  if (done.registry) return `Nodes could not be asked whether they follow: ${done.registry}`;
  if (done.silent.length) return `${done.silent.length} of ${done.silent.length + done.acted.length} nodes did not follow in time; they follow when they are back.`;
  if (!done.acted.length) return "No node answers.";
  return done.acted.length === 1 ? "The node has acknowledged." : `All ${done.acted.length} nodes have acknowledged.`;
}

function act(name, kind, words, share) {
  const length = make("div", { class: "length" });
  length.style.width = `${Math.round(share * 100)}%`;
  return make("li", { class: kind }, make("span", { class: "name", title: name }, name), make("span", { class: "track" }, length), make("span", { class: "ms" }, words));
}

at("form").addEventListener("submit", confirmed);
at("cancel").addEventListener("click", () => at("dialog").close());
