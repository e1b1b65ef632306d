// The last minutes of the memory: a key frame now and then, and what changed in between.
import { Snapshot } from "./frames.js";

const MAX_SECONDS = 600;
const MAX_BYTES = 64 << 20;
const MAX_FRAMES_PER_KEY = 60;
const BYTES_PER_BLOCK = 15; // of a key frame
const BYTES_PER_CHANGE = 11;
const BYTES_PER_REQUEST = 300; // roughly, as for what follows
const BYTES_PER_STEP = 120;
const BYTES_PER_FRAME = 1000;

const weightOf = ({ ids, requests, steps }) =>
  BYTES_PER_FRAME +
  (ids?.length ?? 0) * BYTES_PER_CHANGE +
  requests.length * BYTES_PER_REQUEST +
  steps.length * BYTES_PER_STEP;

/**
 * Any moment can be had again. Memory is bounded: the oldest part goes first, a key frame and its changes at a time.
 * What a frame says beside the blocks (`requests`, `stats`, `steps`) is kept with it.
 */
export class History {
  #parts = []; // {key: Snapshot at frames[0], frames, changes, bytes}
  #now = null;
  #bytes = 0;
  #needsFull = true;

  get isEmpty() {
    return this.#parts.length === 0;
  }

  get start() {
    return this.#parts[0].frames[0].t;
  }

  get end() {
    return this.#parts.at(-1).frames.at(-1).t;
  }

  get bytes() {
    return this.#bytes;
  }

  /** The newest moment; it changes with every frame. */
  get now() {
    return this.#now;
  }

  /**
   * Adds a frame. Returns false for changes of something unknown, as before the first full frame. A full frame from
   * the past, which a new connection begins with, replaces what came after it.
   */
  add(frame) {
    if (frame.full) {
      this.#needsFull = false;
      if (this.#now && this.#now.total !== frame.total) this.clear();
      this.#forgetFrom(frame.t);
      this.#now ??= new Snapshot(frame.total);
    } else if (this.#needsFull || this.#now.total !== frame.total) {
      return false;
    }
    this.#now.apply(frame);
    const last = this.#parts.at(-1);
    const stale = !last || last.frames.length >= MAX_FRAMES_PER_KEY || last.changes > frame.total;
    if (frame.full || stale) this.#begin(frame);
    else this.#extend(last, frame);
    this.#trim();
    return true;
  }

  /** A new connection begins: changes count only after its first full frame. */
  reconnect() {
    this.#needsFull = true;
  }

  clear() {
    this.#parts = [];
    this.#now = null;
    this.#bytes = 0;
  }

  /** The newest frame. */
  get lastFrame() {
    return this.#parts.at(-1).frames.at(-1);
  }

  /** The moment at time `t` (or the closest before it): its frame, and a snapshot that is the caller's own. */
  at(t) {
    const part = this.#parts.findLast((candidate) => candidate.frames[0].t <= t) ?? this.#parts[0];
    const snapshot = part.key.copy();
    let frame = part.frames[0];
    for (const next of part.frames.slice(1)) {
      if (next.t > t) break;
      snapshot.apply(next);
      frame = next;
    }
    return { snapshot, frame };
  }

  /** The frames from `start` to `end`, oldest first. */
  *frames(start = -Infinity, end = Infinity) {
    for (const part of this.#parts) {
      if (part.frames.at(-1).t < start) continue;
      for (const frame of part.frames) {
        if (frame.t > end) return;
        if (frame.t >= start) yield frame;
      }
    }
  }

  #begin(frame) {
    // The key holds the blocks, so the frame itself need not.
    const light = { ...frame, full: true, ids: null, states: null, owners: null, refs: null, ages: null };
    const part = { key: this.#now.copy(), frames: [light], changes: 0, bytes: 0 };
    part.bytes = frame.total * BYTES_PER_BLOCK + weightOf(light);
    this.#bytes += part.bytes;
    this.#parts.push(part);
  }

  #extend(part, frame) {
    const bytes = weightOf(frame);
    part.frames.push(frame);
    part.changes += frame.ids.length;
    part.bytes += bytes;
    this.#bytes += bytes;
  }

  #trim() {
    while (this.#parts.length > 1) {
      const tooOld = this.#parts[1].frames[0].t < this.end - MAX_SECONDS;
      if (!tooOld && this.#bytes <= MAX_BYTES) break;
      this.#bytes -= this.#parts.shift().bytes;
    }
  }

  #forgetFrom(t) {
    while (this.#parts.length && this.#parts.at(-1).frames[0].t >= t) this.#bytes -= this.#parts.pop().bytes;
    const last = this.#parts.at(-1);
    if (!last) return;
    const gone = last.frames.filter((frame) => frame.t >= t);
    last.frames.length -= gone.length;
    for (const frame of gone) {
      const bytes = weightOf(frame);
      last.changes -= frame.ids.length;
      last.bytes -= bytes;
      this.#bytes -= bytes;
    }
  }
}
