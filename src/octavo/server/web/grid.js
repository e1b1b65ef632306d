// Every block as a cell. One pixel per block in a small image, scaled up without smoothing, and a pattern of gaps on
// top: the cost is one pass over what changed, two draws, and no object per block.
import { prefersCalm } from "./dom.js";

const FADE_MS = 360;
const LARGEST_CELL = 20; // CSS pixels
const SMALLEST_CELL = 4;
const SMALLEST_CELL_NARROW = 3; // on a phone, so that a large pool does not become a very long map
const NARROW = 500;
const MAX_CANVAS_SIDE = 8000; // device pixels
const DIMMED = 0.78;

const pack = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;

function mix(from, to, share) {
  const part = (shift) => {
    const a = (from >>> shift) & 255;
    return Math.round(a + (((to >>> shift) & 255) - a) * share) << shift;
  };
  return (0xff000000 | part(16) | part(8) | part(0)) >>> 0;
}

export class BlockGrid {
  #canvas;
  #context;
  #small = document.createElement("canvas");
  #smallContext = this.#small.getContext("2d");
  #image = null;
  #pixels = new Uint32Array(0);
  #states = new Uint8Array(0);
  #mask = null;
  #colours = new Uint32Array(8);
  #dimmed = new Uint32Array(8);
  #paper = "#fff";
  #ink = "#000";
  #from = new Uint32Array(0); // colours that fading cells come from
  #fadeStart = new Float64Array(0); // when, on the clock of animation frames; 0 is not fading
  #fading = new Set();
  #cursor = null;
  #drawnCursor = null;
  #top = Infinity; // rows to draw
  #bottom = -1;
  #requested = false;
  #blank = false; // resized, and with it emptied, but not drawn yet
  #gaps = null;
  columns = 0;
  rows = 0;
  cell = 0; // device pixels
  scale = 1; // device pixels per CSS pixel

  constructor(canvas) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d", { alpha: false });
  }

  get total() {
    return this.#states.length;
  }

  /** Colours of states, paper and ink, each [r, g, b]. */
  setPalette({ states, paper, ink }) {
    const ground = pack(paper);
    states.forEach((colour, code) => {
      this.#colours[code] = pack(colour);
      this.#dimmed[code] = mix(pack(colour), ground, DIMMED);
    });
    this.#paper = `rgb(${paper.join(" ")})`;
    this.#ink = `rgb(${ink.join(" ")})`;
    this.#gaps = null;
    this.#repaint();
  }

  /** Fits `total` cells into `width` CSS pixels, and into `height` if cells of the smallest size allow it. */
  layOut(total, width, height) {
    const scale = window.devicePixelRatio || 1;
    const room = Math.floor(width * scale);
    if (room < 1 || total < 1) return;
    const tall = Math.floor(height * scale);
    const rowsFor = (size) => Math.ceil(total / Math.max(1, Math.floor(room / size)));
    let cell = Math.round(LARGEST_CELL * scale);
    const smallest = (width < NARROW ? SMALLEST_CELL_NARROW : SMALLEST_CELL) * scale;
    while (cell > smallest && rowsFor(cell) * cell > tall) cell -= 1;
    while (cell > 1 && rowsFor(cell) * cell > MAX_CANVAS_SIDE) cell -= 1;
    const columns = Math.min(total, Math.max(1, Math.floor(room / cell)));
    const rows = Math.ceil(total / columns);
    if (total === this.total && columns === this.columns && cell === this.cell && scale === this.scale) return;
    Object.assign(this, { cell, columns, rows, scale });
    if (total !== this.total) {
      this.#states = new Uint8Array(total);
      this.#from = new Uint32Array(total);
      this.#fadeStart = new Float64Array(total);
      this.#fading.clear();
      this.#mask = null;
      this.#cursor = null;
    }
    this.#small.width = columns;
    this.#small.height = rows;
    this.#image = this.#smallContext.createImageData(columns, rows);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.#canvas.width = columns * cell;
    this.#canvas.height = rows * cell;
    this.#canvas.style.width = `${(columns * cell) / scale}px`;
    this.#canvas.style.height = `${(rows * cell) / scale}px`;
    this.#blank = true;
    this.#gaps = null;
    this.#repaint();
  }

  /** Takes over the states of blocks (index: block id - 1; what has no cell is left out); changes fade in. */
  show(states) {
    const calm = this.#blank || prefersCalm() || document.hidden;
    const own = this.#states;
    for (let i = 0; i < own.length; i += 1) {
      if (own[i] === states[i]) continue;
      own[i] = states[i];
      this.#change(i, calm);
    }
    if (this.#blank) this.#drawRows(performance.now()); // in the next frame is too late: this one would show nothing
    else this.#request();
  }

  /** Dims all blocks but those with a 1 in `mask`; null dims none. */
  highlight(mask) {
    const calm = prefersCalm();
    const before = this.#mask;
    this.#mask = mask;
    for (let i = 0; i < this.total; i += 1) {
      if ((before ? before[i] : 1) !== (mask ? mask[i] : 1)) this.#change(i, calm);
    }
    this.#request();
  }

  /** Draws a frame around one cell (an index), or around none. */
  setCursor(index) {
    if (index === this.#cursor) return;
    this.#cursor = index;
    if (index !== null) this.#touch(index, 1);
    if (this.#drawnCursor !== null) this.#touch(this.#drawnCursor, 1);
    this.#request();
  }

  /** The index of the cell at a point of the canvas in CSS pixels, or null. */
  indexAt(x, y) {
    const column = Math.floor((x * this.scale) / this.cell);
    const row = Math.floor((y * this.scale) / this.cell);
    const index = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && index < this.total ? index : null;
  }

  /** Left, top and side of a cell in CSS pixels. */
  boxOf(index) {
    const side = this.cell / this.scale;
    return { x: (index % this.columns) * side, y: Math.floor(index / this.columns) * side, side };
  }

  #target(index) {
    return (this.#mask && !this.#mask[index] ? this.#dimmed : this.#colours)[this.#states[index]];
  }

  #change(index, calm) {
    if (calm) {
      this.#fading.delete(index);
      this.#pixels[index] = this.#target(index);
      this.#touch(index);
    } else {
      this.#from[index] = this.#pixels[index];
      this.#fadeStart[index] = performance.now();
      this.#fading.add(index);
    }
  }

  #touch(index, margin = 0) {
    const row = Math.floor(index / this.columns);
    if (row - margin < this.#top) this.#top = row - margin;
    if (row + margin > this.#bottom) this.#bottom = row + margin;
  }

  #repaint() {
    if (!this.#image) return;
    this.#fading.clear();
    for (let i = 0; i < this.total; i += 1) this.#pixels[i] = this.#target(i);
    this.#top = 0;
    this.#bottom = this.rows - 1;
    this.#request();
  }

  #request() {
    if (this.#requested || !this.#image) return;
    this.#requested = true;
    requestAnimationFrame((now) => {
      this.#requested = false;
      this.#drawRows(now);
      if (this.#fading.size) this.#request();
    });
  }

  #fade(now) {
    for (const index of this.#fading) {
      const share = (now - this.#fadeStart[index]) / FADE_MS;
      const target = this.#target(index);
      if (share >= 1) this.#fading.delete(index);
      this.#pixels[index] = share >= 1 ? target : mix(this.#from[index], target, Math.max(0, share));
      this.#touch(index);
    }
  }

  /** Draws the rows in which something changed. */
  #drawRows(now) {
    this.#fade(now);
    const top = Math.max(0, this.#top);
    const bottom = Math.min(this.rows - 1, this.#bottom);
    this.#top = Infinity;
    this.#bottom = -1;
    if (bottom < top) return;
    this.#blank = false;
    const { cell, columns } = this;
    const context = this.#context;
    const [y, width, height] = [top * cell, columns * cell, (bottom - top + 1) * cell];
    this.#smallContext.putImageData(this.#image, 0, 0, 0, top, columns, bottom - top + 1);
    context.fillStyle = this.#paper;
    context.fillRect(0, y, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#small, 0, top, columns, bottom - top + 1, 0, y, width, height);
    this.#gaps ??= this.#makeGaps();
    if (this.#gaps) {
      context.fillStyle = this.#gaps;
      context.fillRect(0, y, width, height);
    }
    this.#drawCursor();
  }

  #drawCursor() {
    this.#drawnCursor = this.#cursor;
    if (this.#cursor === null) return;
    const { cell, columns } = this;
    const line = Math.max(2, Math.round(1.5 * this.scale));
    const x = (this.#cursor % columns) * cell;
    const y = Math.floor(this.#cursor / columns) * cell;
    this.#context.strokeStyle = this.#ink;
    this.#context.lineWidth = line;
    this.#context.strokeRect(x - line / 2 + 1, y - line / 2 + 1, cell + line - 2, cell + line - 2);
  }

  /** A tile of paper with a hole for the cell, its corners rounded; null where cells are too small for gaps. */
  #makeGaps() {
    const { cell } = this;
    if (cell < 4) return null;
    const gap = Math.max(1, Math.round(cell * 0.13));
    const side = cell - gap;
    const tile = document.createElement("canvas");
    tile.width = cell;
    tile.height = cell;
    const context = tile.getContext("2d");
    context.fillStyle = this.#paper;
    context.fillRect(0, 0, cell, cell);
    context.globalCompositeOperation = "destination-out";
    context.beginPath();
    context.roundRect(0, 0, side, side, side > 7 ? side * 0.18 : 0);
    context.fill();
    return this.#context.createPattern(tile, "repeat");
  }
}
