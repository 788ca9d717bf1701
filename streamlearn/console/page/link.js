// The console's API, and the token that opens it. The token is kept for this tab alone, and is only ever a header.

const KEPT = "streamlearn-token";
const LOOK_MS = 15_000;
const MOVE_MS = 200_000;

export class Refused extends Error {
  constructor(status, said, help) {
    super(said);
    this.status = status;
    this.help = help;
  }
}

export function token() {
  return sessionStorage.getItem(KEPT) ?? "";
}

export function keepToken(said) {
  if (said) sessionStorage.setItem(KEPT, said);
  else sessionStorage.removeItem(KEPT);
}

export function look(path) {
  return ask(path, {}, LOOK_MS);
}

export function move(what, asked) {
  const given = { method: "POST", body: JSON.stringify(asked), headers: { "Content-Type": "application/json" } };
  return ask(`/api/${what}`, given, MOVE_MS);
}

async function ask(path, given, limit) {
  const headers = { ...given.headers };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  let answer;
  try {
    answer = await fetch(path, { ...given, headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(limit) });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Refused(0, late ? `no answer within ${limit / 1000} s` : "the console does not answer", "check that its process is running");
  }
  let said;
  try {
    said = await answer.json();
  } catch {
    throw new Refused(answer.status, `the answer is not JSON; its status is ${answer.status}`, "check the proxies between this page and the console");
  }
  if (!answer.ok) throw new Refused(answer.status, said.error ?? `status ${answer.status}`, said.help ?? "");
  return said;
}
