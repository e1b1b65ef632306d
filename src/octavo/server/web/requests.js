// The requests of a moment, and everything about the selected one.
import { getJson } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { count, duration, percent, plural } from "./format.js";
import { STATES } from "./states.js";

const ASK_AGAIN_MS = 1000;
const MAX_CELLS = 2000; // of a block table on the page
const TEXTS = { running: "runs", waiting: "waits", preempted: "preempted", finished: "finished" };

export const nameOf = (requestId) => `request ${requestId}`;

/** `onSelect(id or null)` is called for a click in the list; `onDetail(detail or null)` when there is news of it. */
export class Requests {
  #list = byId("requests");
  #panel = byId("detail");
  #items = new Map(); // by request id: {item, parts}
  #onSelect;
  #onDetail;
  #selected = null; // what was asked for: an engine's id or a response id
  #detail = null;
  #askedAt = 0;
  #abort = null;
  #cells = []; // [element, index of the block]
  #snapshot = null;

  constructor(onSelect, onDetail) {
    this.#onSelect = onSelect;
    this.#onDetail = onDetail;
  }

  /** The engine's id of the selected request, as far as it is known. */
  get selectedId() {
    return this.#detail?.request_id ?? (typeof this.#selected === "number" ? this.#selected : null);
  }

  get detail() {
    return this.#detail;
  }

  select(id) {
    if (id === this.#selected) return;
    this.#selected = id;
    this.#detail = null;
    this.#cells = [];
    this.#abort?.abort();
    this.#panel.hidden = id === null;
    this.#panel.replaceChildren();
    if (id !== null) this.#ask();
    this.#mark();
  }

  /** Shows the requests of a moment. `isLive` says whether the server can be asked about them. */
  show(requests, numRequests, snapshot, isLive) {
    const seen = new Set();
    requests.forEach((request, k) => {
      seen.add(request.request_id);
      let entry = this.#items.get(request.request_id);
      if (!entry) {
        entry = this.#makeItem(request.request_id);
        this.#items.set(request.request_id, entry);
      }
      describe(entry, request);
      if (this.#list.children[k] !== entry.item) this.#list.insertBefore(entry.item, this.#list.children[k] ?? null);
    });
    for (const [id, entry] of this.#items) {
      if (seen.has(id)) continue;
      entry.item.remove();
      this.#items.delete(id);
    }
    byId("requests-none").hidden = requests.length > 0;
    const left = numRequests - requests.length;
    setText(byId("requests-count"), numRequests ? `${count(numRequests)}${left > 0 ? `, ${count(requests.length)} shown` : ""}` : "");
    this.#mark();
    this.#snapshot = snapshot;
    this.#colour();
    if (this.#selected !== null && isLive && performance.now() - this.#askedAt > ASK_AGAIN_MS) {
      const ended = this.#detail?.state === "finished";
      if (!ended) this.#ask();
    }
  }

  #makeItem(id) {
    const parts = {};
    for (const name of ["state", "name", "tokens", "blocks", "cached", "age"]) {
      parts[name] = element("span", { class: name });
    }
    const button = element("button", {
      type: "button",
      "aria-pressed": "false",
      "data-request": id,
      onclick: () => this.#onSelect(this.selectedId === id ? null : id),
    });
    button.append(...Object.values(parts));
    return { item: element("li", {}, button), button, parts };
  }

  #mark() {
    const selected = this.selectedId;
    for (const [id, { button }] of this.#items) button.setAttribute("aria-pressed", String(id === selected));
  }

  async #ask() {
    const id = this.#selected;
    this.#askedAt = performance.now();
    this.#abort?.abort();
    this.#abort = new AbortController();
    try {
      const detail = await getJson(`/v1/memory/requests/${encodeURIComponent(id)}`, { signal: this.#abort.signal });
      if (id !== this.#selected) return;
      this.#detail = detail;
    } catch (error) {
      if (error.name === "AbortError" || id !== this.#selected) return;
      if (error.status === 404) this.#gone();
      return; // the feed tells of a lost server
    }
    this.#draw();
    this.#mark();
    this.#onDetail(this.#detail);
  }

  #gone() {
    if (this.#detail) {
      this.#detail = { ...this.#detail, state: "finished", tables: [], shared_with: [] };
      this.#draw();
    } else {
      this.#panel.replaceChildren(this.#title(null), element("p", { text: "The server no longer knows this request." }));
    }
    this.#onDetail(this.#detail);
  }

  #title(detail) {
    const text = detail ? `Request ${detail.request_id}` : "Request";
    const close = { type: "button", class: "quiet", text: "Close", "data-focus": "close" };
    return element(
      "div",
      { class: "bar" },
      element("h4", { id: "detail-title", text }),
      element("button", { ...close, onclick: () => this.#onSelect(null) }),
    );
  }

  #draw() {
    const detail = this.#detail;
    const hadFocus = this.#panel.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    const scrolled = [...this.#panel.querySelectorAll(".table")].map((table) => table.scrollTop);
    const facts = [
      ["state", TEXTS[detail.state] ?? detail.state],
      ["prompt", plural(detail.prompt_len, "token")],
      ["written", plural(Math.max(0, detail.num_tokens - detail.prompt_len), "token")],
      ["blocks", `${count(detail.num_blocks)}, ${count(detail.num_shared_blocks)} shared`],
      ["age", duration(detail.age_s)],
    ];
    if (detail.num_preemptions) facts.push(["preempted", `${count(detail.num_preemptions)} times`]);
    if (detail.response_id) facts.push(["response", detail.response_id]);
    if (detail.user) facts.push(["user", detail.user]);
    this.#panel.replaceChildren(
      this.#title(detail),
      element("dl", { class: "facts" }, ...facts.map(([name, value]) => pair(name, value))),
      ...this.#prefix(detail.prefix),
      ...this.#sharers(detail),
      ...this.#tables(detail),
    );
    this.#colour();
    this.#panel.querySelectorAll(".table").forEach((table, k) => (table.scrollTop = scrolled[k] ?? 0));
    if (hadFocus) this.#panel.querySelector(`[data-focus="${hadFocus}"]`)?.focus();
  }

  #prefix(prefix) {
    if (!prefix) return [];
    const share = prefix.num_tokens ? prefix.num_cached / prefix.num_tokens : 0;
    const meter = element("progress", { max: 1, value: share, "aria-label": "Share of the prompt that was cached" });
    return [
      element("h5", { text: "Prefix found in the cache" }),
      meter,
      element("p", { class: "prefix", "data-reason": prefix.reason, text: `${capital(prefix.text)}.` }),
    ];
  }

  #sharers(detail) {
    const sharers = detail.shared_with ?? [];
    if (!sharers.length) return [];
    const entries = sharers.map(({ request_id: id, num_blocks: blocks }) =>
      element(
        "li",
        {},
        element("button", {
          type: "button",
          class: "link",
          "data-sharer": id,
          "data-focus": `sharer-${id}`,
          text: `${nameOf(id)}: ${plural(blocks, "block")}`,
          onclick: () => this.#onSelect(id),
        }),
      ),
    );
    return [element("h5", { text: "Shares blocks with" }), element("ul", { class: "sharers" }, ...entries)];
  }

  #tables(detail) {
    this.#cells = [];
    const made = [];
    (detail.tables ?? []).forEach((table, k) => {
      if (!table.length) return;
      const size = plural(detail.block_sizes[k], "token");
      const which = detail.tables.length > 1 ? `Block table ${k + 1}` : "Block table";
      const cells = table.slice(0, MAX_CELLS).map((id, position) => {
        const where = `tokens ${count(position * detail.block_sizes[k])} and on`;
        const cell = element("li", { title: id ? `block ${id}, ${where}` : `given back, ${where}`, text: id || "–" });
        if (id) this.#cells.push([cell, id - 1]);
        return cell;
      });
      const more = table.length - cells.length;
      made.push(
        element("h5", { text: `${which}, ${plural(table.length, "block")} of ${size}, in order` }),
        element("ol", { class: "table", tabindex: "0", "aria-label": which, "data-focus": `table-${k}` }, ...cells),
        ...(more > 0 ? [element("p", { class: "hint", text: `and ${count(more)} more` })] : []),
      );
    });
    return made;
  }

  #colour() {
    const snapshot = this.#snapshot;
    if (!snapshot) return;
    for (const [cell, index] of this.#cells) {
      const name = index < snapshot.total ? STATES[snapshot.states[index]].name : "";
      if (cell.className !== name) cell.className = name;
    }
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const pair = (name, value) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }));

function describe({ parts, button }, request) {
  button.dataset.state = request.state;
  setText(parts.state, TEXTS[request.state] ?? request.state);
  setText(parts.name, `${request.request_id}${request.endpoint ? ` ${request.endpoint}` : ""}`);
  setText(parts.tokens, `${plural(request.num_tokens, "token")}`);
  const shared = request.num_shared_blocks ? `, ${count(request.num_shared_blocks)} shared` : "";
  setText(parts.blocks, `${plural(request.num_blocks, "block")}${shared}`);
  const share = request.prompt_len ? request.num_cached_tokens / request.prompt_len : 0;
  setText(parts.cached, request.num_cached_tokens ? `${percent(Math.min(1, share))} of the prompt cached` : "");
  setText(parts.age, duration(request.age_s));
}
