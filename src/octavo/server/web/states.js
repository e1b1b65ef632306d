// The states of a block, in the order of the feed's codes. Colours are in style.css (`--state-…`).

export const STATES = [
  { name: "free", label: "free", meaning: "nobody holds it and it holds nothing" },
  { name: "held", label: "held", meaning: "one request holds it" },
  { name: "shared", label: "shared", meaning: "several requests hold it" },
  { name: "cached", label: "cached", meaning: "nobody holds it, but its tokens can be found again" },
  { name: "pinned", label: "pinned", meaning: "a copy of it is in progress" },
  { name: "lower", label: "lower tier", meaning: "its bytes are in a lower tier" },
];

/** The colours as the browser computes them, [r, g, b] by state code, and of the paper beneath. */
export function readPalette(legend) {
  const colours = STATES.map((_, code) => parse(legend.querySelector(`[data-code="${code}"] .swatch`)));
  return { states: colours, paper: parse(legend.closest(".panel")), ink: parseText(legend) };
}

const numbers = (css) => css.match(/[\d.]+/g).slice(0, 3).map(Number);
const parse = (node) => numbers(getComputedStyle(node).backgroundColor);
const parseText = (node) => numbers(getComputedStyle(node).color);
