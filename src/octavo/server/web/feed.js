// The connection to the memory feed. It comes back by itself, and rests while the tab is hidden.
import { call, events } from "./api.js";
import { decodeFrame } from "./frames.js";

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15_000;
const SILENCE_MS = 20_000; // the server says something every 5 s; longer than this, and the line is dead

/**
 * Calls `onFrame(frame)` with each that arrived, and `onStatus(status, error)` with "connecting", "live", "paused" or
 * "lost". `wake()` tries again at once, as after a new API key.
 */
export class Feed {
  #path;
  #onFrame;
  #onStatus;
  #abort = null;
  #timer = null;
  #watch = null;
  #delay = FIRST_DELAY_MS;

  constructor(path, onFrame, onStatus) {
    this.#path = path;
    this.#onFrame = onFrame;
    this.#onStatus = onStatus;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.wake()));
  }

  start() {
    if (!document.hidden) this.wake();
  }

  wake() {
    this.#stop();
    this.#delay = FIRST_DELAY_MS;
    this.#connect();
  }

  #pause() {
    this.#stop();
    this.#onStatus("paused", null);
  }

  #stop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #connect() {
    const abort = new AbortController();
    this.#abort = abort;
    this.#onStatus("connecting", null);
    const listen = () => {
      clearTimeout(this.#watch);
      this.#watch = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    listen();
    let failure = null;
    try {
      const response = await call(this.#path, { signal: abort.signal });
      for await (const text of events(response)) {
        if (this.#abort !== abort) return; // it was told to stop
        listen();
        this.#onFrame(decodeFrame(text));
        this.#delay = FIRST_DELAY_MS;
        this.#onStatus("live", null);
      }
    } catch (error) {
      failure = error;
    }
    abort.abort(); // after a frame that could not be read the stream is still open
    if (this.#abort !== abort) return;
    clearTimeout(this.#watch);
    this.#onStatus("lost", failure);
    this.#timer = setTimeout(() => this.#connect(), this.#delay);
    this.#delay = Math.min(this.#delay * 2, LONGEST_DELAY_MS);
  }
}
