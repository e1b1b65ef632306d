// A conversation with the model: asks, streams, stops.
import { call, events } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { Transcript } from "./transcript.js";

const SUGGESTIONS = [
  "Explain paging in an operating system in three sentences.",
  "Write a short poem about an octavo, a sheet folded into sixteen pages.",
  "What is the capital of France?",
];

export class Chat {
  #settings;
  #onShowBlocks;
  #transcript = new Transcript();
  #prompt = byId("prompt");
  #messages = []; // as the API takes them, without the system prompt
  #abort = null;

  constructor(settings, onShowBlocks) {
    this.#settings = settings;
    this.#onShowBlocks = onShowBlocks;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    this.#prompt.addEventListener("input", () => this.#fit());
    byId("stop").addEventListener("click", () => this.#abort?.abort());
    byId("new-chat").addEventListener("click", () => this.#restart());
    byId("suggestions").append(
      ...SUGGESTIONS.map((text) => element("button", { type: "button", text, onclick: () => this.#send(text) })),
    );
  }

  #fit() {
    this.#prompt.style.height = "auto";
    this.#prompt.style.height = `${Math.min(this.#prompt.scrollHeight + 2, 200)}px`;
  }

  #restart() {
    this.#abort?.abort();
    this.#messages = [];
    this.#transcript.clear();
    this.#prompt.focus();
  }

  async #send(text = this.#prompt.value.trim()) {
    if (!text || this.#abort) return;
    this.#prompt.value = "";
    this.#fit();
    this.#transcript.addUser(text);
    const messages = [...this.#messages, { role: "user", content: text }];
    this.#messages = messages;
    const answer = this.#transcript.addAnswer(this.#onShowBlocks);
    const abort = new AbortController();
    this.#setBusy(abort);
    const progress = { began: performance.now(), first: null, last: null, usage: null, reason: null, id: null };
    let failure = null;
    try {
      await this.#stream(messages, answer, abort.signal, progress);
    } catch (error) {
      failure = error;
    }
    this.#setBusy(null);
    const stopped = abort.signal.aborted;
    if (failure && !stopped) {
      answer.fail(failure.message);
      progress.reason = "error";
    }
    answer.finish({
      usage: progress.usage,
      reason: stopped ? "stopped" : progress.reason,
      firstTokenS: progress.first === null ? null : (progress.first - progress.began) / 1000,
      streamS: progress.first === null ? 0 : (progress.last - progress.first) / 1000,
      responseId: progress.id,
    });
    if (this.#messages !== messages) return; // a new conversation has begun
    if (answer.text) this.#messages = [...messages, { role: "assistant", content: answer.text }];
    else this.#messages = messages.slice(0, -1); // a question without an answer is not asked again
    setText(byId("chat-status"), failure && !stopped ? "" : `Answer: ${answer.text}`);
  }

  async #stream(messages, answer, signal, progress) {
    const { system } = this.#settings;
    const body = {
      ...this.#settings.parameters(),
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
      stream: true,
      stream_options: { include_usage: true },
    };
    for await (const data of events(await call("/v1/chat/completions", { body, signal }))) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      progress.id = chunk.id ?? progress.id;
      progress.usage = chunk.usage ?? progress.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      progress.reason = choice.finish_reason ?? progress.reason;
      const content = choice.delta?.content ?? "";
      const reasoning = choice.delta?.reasoning_content ?? "";
      if (!content && !reasoning) continue;
      progress.last = performance.now();
      progress.first ??= progress.last;
      answer.grow(content, reasoning);
    }
  }

  #setBusy(abort) {
    const hadFocus = [byId("stop"), byId("send")].includes(document.activeElement);
    this.#abort = abort;
    byId("send").hidden = abort !== null;
    byId("stop").hidden = abort === null;
    if (hadFocus) byId(abort ? "stop" : "send").focus(); // the button that had it is hidden now
    if (abort) setText(byId("chat-status"), "Waiting for the answer");
  }
}
