// The memory view: takes frames in, and shows one moment, the newest or an earlier one.
import { getJson } from "./api.js";
import { drawLine, drawStack } from "./charts.js";
import { byId, element, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { bytes, count, duration, number, percent, plural } from "./format.js";
import { BlockGrid } from "./grid.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { nameOf, Requests } from "./requests.js";
import { readPalette, STATES } from "./states.js";

const CHART_S = 300;
const SHORTEST_CHART_S = 60;
const STEP_PARTS = ["--decode", "--prompt", "--draft"];
const FEWEST_CELLS = 512; // with the untouched end folded away
const STATUS_TEXTS = { connecting: "connecting", live: "connected", paused: "paused", lost: "connection lost, trying again" };

const FIGURES = [
  { label: "blocks in use", text: ({ used_blocks: used }, total) => `${count(used)} of ${count(total)}` },
  { label: "sharing", text: ({ sharing_ratio: ratio }) => `${number(ratio)} ×` },
  { label: "waste", text: ({ waste }) => percent(waste) },
  { label: "prefix hits", text: ({ hit_rate: rate }) => percent(rate) },
  { label: "running", text: ({ num_running: running }) => count(running) },
  { label: "waiting", text: ({ num_waiting: waiting }) => count(waiting) },
];

const CHARTS = [
  { key: "tokens_per_s", title: "Tokens per second", format: number },
  { key: "ttft_s", title: "Time to first token", format: duration, sparse: true },
  { key: "waste", title: "Waste", format: percent },
  { key: "hit_rate", title: "Prefix hits", format: percent, max: 1 },
];

export class MemoryView {
  #history = new History();
  #grid = new BlockGrid(byId("grid"));
  #feed;
  #inspector;
  #requests;
  #epoch = null; // time of the slider's zero
  #pastTime = null; // the moment looked at; null is the newest
  #shown = null; // {snapshot, frame}
  #scheduled = false;
  #folds = true; // leaves out the blocks at the end that were free in all frames so far
  #touched = 0; // the highest block that was not
  #slider = byId("moment");
  #figures;
  #counts;
  #charts;

  constructor() {
    this.#figures = this.#makeFigures();
    this.#counts = this.#makeLegend();
    this.#charts = this.#makeCharts();
    this.#requests = new Requests(
      (id) => this.select(id),
      () => this.#highlight(),
    );
    this.#inspector = new Inspector({
      canvas: byId("grid"),
      grid: this.#grid,
      tooltip: byId("tooltip"),
      readout: byId("readout"),
      moment: () => this.#moment(),
      nameOf,
      onSelect: (id) => this.select(id),
    });
    this.#feed = new Feed(
      "/v1/memory/stream?interval=0.5",
      (frame) => this.#take(frame),
      (status, error) => this.#tellStatus(status, error),
    );
    this.#slider.addEventListener("input", () => this.#slide());
    byId("fold").addEventListener("click", () => {
      this.#folds = !this.#folds;
      this.#schedule();
    });
    byId("live").addEventListener("click", () => this.#goTo(null));
    new ResizeObserver(() => this.#schedule()).observe(byId("map"));
    new ResizeObserver(() => this.#drawCharts()).observe(byId("charts"));
  }

  start() {
    this.#feed.start();
  }

  /** The API key has changed. */
  reconnect() {
    this.#feed.wake();
  }

  /** The theme has changed. */
  recolour() {
    this.#grid.setPalette(readPalette(byId("legend")));
    this.#drawCharts();
  }

  /** Selects a request by the engine's id or the response id, or none. */
  select(id) {
    this.#requests.select(id);
    this.#highlight();
    this.#schedule();
    if (typeof id === "string") byId("detail").scrollIntoView({ block: "nearest" });
  }

  #moment() {
    const isLive = this.#pastTime === null;
    return { snapshot: this.#shown?.snapshot ?? null, time: this.#shown?.frame.t ?? 0, isLive };
  }

  #take(frame) {
    if (!this.#history.add(frame)) return;
    this.#noteTouched(frame);
    this.#epoch ??= frame.t;
    this.#epoch = Math.min(this.#epoch, frame.t);
    this.#schedule();
  }

  #noteTouched(frame) {
    const { total } = frame;
    if (this.#touched > total) this.#touched = 0; // another server
    let highest = this.#touched;
    frame.states.forEach((state, k) => {
      const id = frame.ids ? frame.ids[k] : k + 1;
      if (state && id > highest) highest = id;
    });
    this.#touched = highest;
  }

  /** How many blocks get a cell: all, or a power of two of those from the first, if the others were never used. */
  #numCells(total) {
    const needed = Math.max(FEWEST_CELLS, 2 ** Math.ceil(Math.log2(this.#touched + 1)));
    const canFold = 2 * needed <= total;
    const cells = this.#folds && canFold ? needed : total;
    const folded = count(total - needed);
    byId("fold").hidden = !canFold;
    setText(byId("fold"), this.#folds ? `Show ${folded} more that were free all along` : "Show only blocks used so far");
    return cells;
  }

  #tellStatus(status, error) {
    const node = byId("feed");
    if (status === "connecting") this.#history.reconnect();
    if (status === "live" && node.dataset.status !== "live") this.#describePool();
    // While it tries again, what was wrong stays to be read.
    if (status === "connecting" && node.dataset.status === "lost") return;
    node.dataset.status = status;
    setText(node, status === "lost" && error?.status ? error.message : STATUS_TEXTS[status]);
  }

  async #describePool() {
    try {
      const { pool } = await getJson("/v1/memory");
      const sizes = pool.block_sizes.join("/");
      setText(byId("pool"), `${count(pool.total_blocks)} blocks of ${sizes} tokens, ${bytes(pool.block_bytes)} each`);
    } catch {
      setText(byId("pool"), "");
    }
  }

  #slide() {
    const t = this.#epoch + Number(this.#slider.value);
    const isEnd = Number(this.#slider.value) >= Number(this.#slider.max) - 0.25;
    this.#goTo(isEnd ? null : t);
  }

  #goTo(t) {
    this.#pastTime = t;
    this.#shown = null;
    this.#schedule();
  }

  #schedule() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      if (!this.#history.isEmpty) this.#draw();
    });
  }

  #draw() {
    const history = this.#history;
    const isLive = this.#pastTime === null;
    if (isLive) this.#shown = { snapshot: history.now, frame: history.lastFrame };
    else if (!this.#shown || this.#pastTime < history.start) {
      this.#pastTime = Math.max(this.#pastTime, history.start);
      this.#shown = history.at(this.#pastTime);
    }
    const { snapshot, frame } = this.#shown;
    const map = byId("map");
    const height = Math.max(180, Math.min(480, window.innerHeight * 0.4));
    this.#grid.layOut(this.#numCells(snapshot.total), map.clientWidth, height);
    this.#grid.show(snapshot.states);
    this.#drawFigures(snapshot, frame);
    this.#requests.show(frame.requests, frame.numRequests, snapshot, isLive);
    this.#highlight();
    this.#inspector.refresh();
    this.#drawSlider(isLive);
    this.#drawCharts();
    map.dataset.time = frame.t;
  }

  #drawFigures(snapshot, frame) {
    const counts = snapshot.counts();
    this.#counts.forEach((node, code) => {
      setText(node, count(counts[code]));
      node.dataset.count = counts[code];
    });
    FIGURES.forEach(({ text }, k) => setText(this.#figures[k], text(frame.stats, snapshot.total)));
    const summary = STATES.map(({ label }, code) => `${count(counts[code])} ${label}`).join(", ");
    byId("grid").setAttribute("aria-label", `Map of ${plural(snapshot.total, "block")}: ${summary}`);
  }

  /** Blocks of the selected request: its tables now, or those it was the first to hold in the past. */
  #highlight() {
    const id = this.#requests.selectedId;
    const snapshot = this.#shown?.snapshot;
    if (!snapshot || id === null) {
      this.#grid.highlight(null);
      return;
    }
    const mask = new Uint8Array(snapshot.total);
    let any = false;
    const detail = this.#requests.detail;
    if (this.#pastTime === null && detail) {
      for (const table of detail.tables ?? []) for (const block of table) if (block) any = mask[block - 1] = 1;
    } else {
      for (let i = 0; i < mask.length; i += 1) if (snapshot.owners[i] === id) any = mask[i] = 1;
    }
    this.#grid.highlight(any ? mask : null);
  }

  #drawSlider(isLive) {
    const { start, end } = this.#history;
    const slider = this.#slider;
    slider.min = Math.floor((start - this.#epoch) * 2) / 2;
    slider.max = Math.max(Math.ceil((end - this.#epoch) * 2) / 2, Number(slider.min) + 0.5);
    slider.value = isLive ? slider.max : this.#pastTime - this.#epoch;
    const ago = end - (this.#pastTime ?? end);
    const text = isLive ? "now" : `${duration(Math.max(1, ago))} ago`;
    setText(byId("moment-text"), text);
    setText(byId("cost"), `watching takes ${percent(this.#history.lastFrame.cost)} of the engine's time`);
    const clock = new Date(this.#shown.frame.t * 1000).toLocaleTimeString();
    slider.setAttribute("aria-valuetext", isLive ? "now" : `${text}, at ${clock}`);
    byId("live").setAttribute("aria-pressed", String(isLive));
    byId("memory").dataset.moment = isLive ? "live" : "past";
  }

  #drawCharts() {
    if (this.#history.isEmpty || !this.#shown) return;
    const { end } = this.#history;
    const start = Math.min(Math.max(this.#history.start, end - CHART_S), end - SHORTEST_CHART_S);
    const frames = [...this.#history.frames(start, end)];
    const marker = this.#pastTime;
    const until = this.#shown.frame.t;
    CHARTS.forEach(({ key, format, max, sparse }, k) => {
      const points = frames.map((frame) => [frame.t, frame.stats[key] ?? null]);
      const { canvas, value } = this.#charts[k];
      const latest = points.findLast(([t, y]) => t <= until && y !== null);
      setText(value, latest ? format(latest[1]) : "–");
      drawLine(canvas, points, { start, end, max, format, marker, sparse });
    });
    const steps = [];
    for (const frame of frames) if (frame.t <= until) steps.push(...frame.steps);
    const { canvas, value } = this.#charts.at(-1);
    const columns = steps.slice(-400).map(([, , , prompt, decode, drafts]) => [decode, prompt, drafts]);
    const last = columns.at(-1);
    setText(value, last ? plural(last[0] + last[1] + last[2], "token") : "–");
    drawStack(canvas, columns, { colours: STEP_PARTS, format: (limit) => plural(limit, "token") });
  }

  #makeFigures() {
    const values = FIGURES.map(() => element("dd", { text: "–" }));
    byId("figures").append(
      ...FIGURES.map(({ label }, k) => element("div", {}, element("dt", { text: label }), values[k])),
    );
    return values;
  }

  #makeLegend() {
    const counts = STATES.map(({ name }) => element("span", { class: "count", "data-state": name, "data-count": 0, text: "0" }));
    byId("legend").append(
      ...STATES.map(({ name, label, meaning }, code) =>
        element(
          "li",
          { "data-code": code, title: meaning },
          element("span", { class: `swatch ${name}` }),
          element("span", { text: label }),
          counts[code],
        ),
      ),
    );
    return counts;
  }

  #makeCharts() {
    const make = (title, kind, ...more) => {
      const canvas = element("canvas", { class: kind, "aria-hidden": "true" });
      const value = element("span", { class: "value", text: "–" });
      const caption = element("figcaption", {}, element("span", { text: title }), value);
      byId("charts").append(element("figure", { class: kind }, caption, canvas, ...more));
      return { canvas, value };
    };
    const key = element(
      "p",
      { class: "key" },
      ...["decode", "prompt", "draft"].map((part) =>
        element("span", {}, element("span", { class: `swatch ${part}` }), `${part} tokens`),
      ),
      element("span", { class: "scale", text: "heights by square root" }),
    );
    return [
      ...CHARTS.map(({ title, key: name }) => make(title, name)),
      make("Tokens in each of the last steps", "steps", key),
    ];
  }
}
