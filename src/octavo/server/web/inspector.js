// What one block is: by pointer in a tooltip, by keyboard in the tooltip and read aloud.
import { getJson } from "./api.js";
import { element, setText } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { STATES } from "./states.js";

const ASK_AFTER_MS = 160; // the pointer rests, or the key is not held down
const ASK_AGAIN_MS = 1500;

/**
 * `moment()` gives {snapshot, time, isLive}; `nameOf(requestId)` a name for people; `onSelect(requestId or null)` is
 * called for a click, Enter or Escape.
 */
export class Inspector {
  #canvas;
  #grid;
  #tooltip;
  #readout;
  #moment;
  #nameOf;
  #onSelect;
  #index = null;
  #byKeyboard = false;
  #details = null; // of block #index + 1, from the server
  #askedAt = 0;
  #timer = null;
  #abort = null;

  constructor({ canvas, grid, tooltip, readout, moment, nameOf, onSelect }) {
    this.#canvas = canvas;
    this.#grid = grid;
    this.#tooltip = tooltip;
    this.#readout = readout;
    this.#moment = moment;
    this.#nameOf = nameOf;
    this.#onSelect = onSelect;
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerdown", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => this.#move(null, false));
    canvas.addEventListener("click", () => this.#select());
    canvas.addEventListener("keydown", (event) => this.#press(event));
    canvas.addEventListener("focus", () => {
      if (this.#index === null && canvas.matches(":focus-visible")) this.#move(0, true);
    });
    canvas.addEventListener("blur", () => this.#move(null, false));
  }

  /** The moment shown has changed. */
  refresh() {
    if (this.#index === null) return;
    if (this.#index >= this.#grid.total) {
      this.#move(null, false);
      return;
    }
    const { isLive } = this.#moment();
    if (!isLive) this.#details = null;
    else if (performance.now() - this.#askedAt > ASK_AGAIN_MS) this.#ask();
    this.#draw();
  }

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    this.#move(this.#grid.indexAt(event.clientX - box.left, event.clientY - box.top), false);
  }

  #press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.#grid.total) return;
    const { columns, total } = this.#grid;
    const at = this.#index ?? 0;
    const page = columns * 10;
    const targets = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - columns,
      ArrowDown: at + columns,
      PageUp: at - page,
      PageDown: at + page,
      Home: 0,
      End: total - 1,
    };
    if (event.key in targets) {
      event.preventDefault();
      const target = targets[event.key];
      const stays = event.key.startsWith("Arrow") && (target < 0 || target >= total);
      this.#move(stays ? at : Math.min(total - 1, Math.max(0, target)), true);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#select();
    } else if (event.key === "Escape") {
      this.#onSelect(null);
    }
  }

  #select() {
    if (this.#index === null) return;
    const { snapshot } = this.#moment();
    const owner = snapshot?.owners[this.#index] ?? -1;
    this.#onSelect(owner >= 0 ? owner : null);
  }

  #move(index, byKeyboard) {
    if (index === this.#index && byKeyboard === this.#byKeyboard) return;
    this.#byKeyboard = byKeyboard;
    if (index !== this.#index) {
      this.#index = index;
      this.#details = null;
      this.#grid.setCursor(index);
      this.#askSoon();
    }
    this.#draw();
  }

  #askSoon() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    if (this.#index === null) return;
    this.#timer = setTimeout(() => {
      this.#ask();
      this.#read();
    }, ASK_AFTER_MS);
  }

  async #ask() {
    this.#askedAt = performance.now();
    if (!this.#moment().isLive) return;
    const index = this.#index;
    this.#abort?.abort();
    this.#abort = new AbortController();
    try {
      const details = await getJson(`/v1/memory/blocks/${index + 1}`, { signal: this.#abort.signal });
      if (index !== this.#index || !this.#moment().isLive) return;
      this.#details = details;
    } catch {
      return; // the feed tells of a lost server; without details the basics stay
    }
    this.#draw();
    this.#read();
  }

  /** What is known, as [name, value] pairs. */
  #facts() {
    const { snapshot, time } = this.#moment();
    const i = this.#index;
    const details = this.#details;
    const code = snapshot.states[i];
    const owners = details?.owners ?? (snapshot.owners[i] >= 0 ? [snapshot.owners[i]] : []);
    const refs = details?.ref_count ?? snapshot.refs[i];
    const facts = [];
    if (owners.length) {
      const more = !details && refs > owners.length ? " and others" : "";
      facts.push(["held by", owners.slice(0, 6).map(this.#nameOf).join(", ") + (owners.length > 6 ? " …" : more)]);
    }
    facts.push(["references", count(refs)]);
    facts.push([`${STATES[code].label} for`, duration(Math.max(0, time - snapshot.since[i]))]);
    if (details) {
      if (details.position !== null) facts.push(["from token", count(details.position)]);
      facts.push(["filled", `${details.num_tokens} of ${plural(details.block_size, "token")}`]);
      if (details.pins) facts.push(["copies in flight", count(details.pins)]);
    }
    return { code, facts, text: details?.text ?? null };
  }

  #draw() {
    const tooltip = this.#tooltip;
    const { snapshot } = this.#moment();
    if (this.#index === null || !snapshot) {
      tooltip.hidden = true;
      return;
    }
    const { code, facts, text } = this.#facts();
    tooltip.replaceChildren(
      element(
        "p",
        { class: "title" },
        element("span", { class: `swatch ${STATES[code].name}` }),
        `Block ${this.#index + 1}, ${STATES[code].label}`,
      ),
      element(
        "dl",
        {},
        ...facts.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))),
      ),
      ...(text ? [element("p", { class: "content", text })] : []),
    );
    tooltip.hidden = false;
    const { x, y, side } = this.#grid.boxOf(this.#index);
    const room = tooltip.parentElement.clientWidth;
    const left = Math.max(0, Math.min(x + side + 8, room - tooltip.offsetWidth));
    const below = y + side + 8;
    tooltip.style.transform = `translate(${Math.round(left)}px, ${Math.round(below)}px)`;
  }

  #read() {
    if (!this.#byKeyboard || this.#index === null || !this.#moment().snapshot) return;
    const { code, facts, text } = this.#facts();
    const told = facts.map(([name, value]) => `${name} ${value}`).join(", ");
    const content = text ? `, text: ${text}` : "";
    setText(this.#readout, `Block ${this.#index + 1}, ${STATES[code].label}, ${told}${content}`);
  }
}
