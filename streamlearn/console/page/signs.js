// The signs of versions and of moves: each differs from the others by its shape, and by its colour besides.

import { draw, make } from "./text.js";

export const STANDINGS = {
  active: "active: it is served",
  canary: "canary: it answers a share of the requests",
  shadow: "shadow: it scores a share of the requests without answering them",
  passed: "passed: the judge passed it",
  unscored: "unscored: no check objected, but it could not be compared with the active version",
  accepted: "accepted: it was tainted or rejected, and an operator promoted it anyway",
  waiting: "waiting for the judge",
  tainted: "tainted: it comes after a version that was rejected or rolled back",
  rejected: "rejected by the judge",
  incomplete: "cannot be read",
};

export function dot(standing, x, y, size) {
  const given = { class: `dot ${standing}` };
  switch (standing) {
    case "active":
      return draw("circle", { ...given, cx: x, cy: y, r: size + 2.5 });
    case "canary":
    case "shadow": {
      const r = size + 2;
      return draw("path", { ...given, d: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z` });
    }
    case "rejected": {
      const r = size;
      return draw("path", { ...given, d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}` });
    }
    case "incomplete":
      return draw("rect", { ...given, x: x - size, y: y - size, width: 2 * size, height: 2 * size });
    default:
      return draw("circle", { ...given, cx: x, cy: y, r: size });
  }
}

export function flag(what, x, y) {
  const r = 6;
  const shapes = {
    rollback: `M${x + r} ${y - r}L${x - r} ${y}L${x + r} ${y + r}Z`,
    release: `M${x - r} ${y - r}L${x + r} ${y}L${x - r} ${y + r}Z`,
    hold: `M${x - r} ${y - r}h4.4v${2 * r}h-4.4ZM${x + r - 4.4} ${y - r}h4.4v${2 * r}h-4.4Z`,
  };
  return shapes[what] ? draw("path", { class: `flag ${what}`, d: shapes[what] }) : null;
}

export function picture(shape) {
  return draw("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, shape);
}

export function sign(standing, words) {
  return make("span", { class: "sign", title: STANDINGS[standing] ?? "" }, picture(dot(standing, 8, 8, 4)), words);
}

export function moveSign(what) {
  const shape = flag(what, 8, 8) ?? draw("circle", { class: "sign-dot", cx: 8, cy: 8, r: 3.5 });
  return picture(draw("g", { class: "sign" }, shape));
}
