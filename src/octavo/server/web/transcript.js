// The messages on the page. What the model wrote is put in as text only.
import { byId, element, setText } from "./dom.js";
import { count, duration, number } from "./format.js";

export class Transcript {
  #list = byId("messages");
  #scroller = byId("transcript");
  #follows = true;

  constructor() {
    this.#scroller.addEventListener("scroll", () => {
      const left = this.#scroller.scrollHeight - this.#scroller.scrollTop - this.#scroller.clientHeight;
      this.#follows = left < 40;
    });
  }

  clear() {
    this.#list.replaceChildren();
    byId("welcome").hidden = false;
  }

  addUser(text) {
    byId("welcome").hidden = true;
    this.#follows = true;
    this.#list.append(
      element(
        "li",
        { class: "message user" },
        element("h3", { class: "unseen", text: "You" }),
        element("p", { class: "text", text }),
      ),
    );
    this.toEnd();
  }

  /** An empty answer that grows. */
  addAnswer(onShowBlocks) {
    const answer = new Answer(() => this.toEnd(), onShowBlocks);
    this.#list.append(answer.node);
    this.toEnd();
    return answer;
  }

  /** Scrolls down, unless the reader has scrolled away. */
  toEnd() {
    if (this.#follows) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

class Answer {
  #body = element("div", { class: "text said" });
  #reasoning = element("p", { class: "text" });
  #summary = element("summary", { text: "Thinking …" });
  #folded = element("details", { class: "reasoning", hidden: true }, this.#summary, this.#reasoning);
  #foot = element("p", { class: "foot" });
  #onGrow;
  #onShowBlocks;
  #requested = false;
  text = "";
  reasoning = "";

  constructor(onGrow, onShowBlocks) {
    this.#onGrow = onGrow;
    this.#onShowBlocks = onShowBlocks;
    this.node = element(
      "li",
      { class: "message answer", "aria-busy": "true" },
      element("h3", { class: "unseen", text: "Answer" }),
      this.#folded,
      this.#body,
      this.#foot,
    );
  }

  /** New text, of the answer or of the thoughts before it; drawn once per animation frame. */
  grow(content, reasoning) {
    this.text += content;
    this.reasoning += reasoning;
    if (this.#requested) return;
    this.#requested = true;
    requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#requested = false;
    if (this.reasoning) {
      this.#folded.hidden = false;
      setText(this.#reasoning, this.reasoning.trim());
      if (this.text) setText(this.#summary, "Thoughts");
    }
    fill(this.#body, this.text);
    this.#onGrow();
  }

  /** The end: how it went (`usage` may be null), and how it ended. */
  finish({ usage, reason, firstTokenS, streamS, responseId }) {
    this.#draw();
    if (this.reasoning) setText(this.#summary, "Thoughts");
    this.node.setAttribute("aria-busy", "false");
    const parts = [];
    if (usage) {
      parts.push(`${count(usage.completion_tokens)} tokens`);
      const rest = usage.completion_tokens - 1;
      if (rest > 0 && streamS > 0) parts.push(`${number(rest / streamS)} tokens/s`);
    }
    if (firstTokenS !== null) parts.push(`first after ${duration(firstTokenS)}`);
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      parts.push(`prompt ${count(usage.prompt_tokens)}, ${count(cached)} of it cached`);
    }
    if (reason === "length") parts.push("cut at the limit of tokens");
    if (reason === "stopped") parts.push("stopped by you");
    if (!this.text && !this.reasoning && reason !== "error") this.#body.append(element("em", { text: "(no text)" }));
    this.#foot.replaceChildren(...parts.map((text) => element("span", { text })));
    if (responseId) {
      const button = { type: "button", class: "link", text: "Show its blocks" };
      this.#foot.append(element("button", { ...button, onclick: () => this.#onShowBlocks(responseId) }));
    }
    this.#onGrow();
  }

  fail(message) {
    this.node.setAttribute("aria-busy", "false");
    this.node.append(element("p", { class: "error", role: "alert", text: message }));
    this.#onGrow();
  }
}

/** Shows text in paragraphs, with code, bold words and headings set apart. Only parts that changed are made anew. */
function fill(node, text) {
  const parts = split(text);
  parts.forEach((part, k) => {
    const child = node.children[k];
    if (child?.dataset.kind === part.kind && child.source === part.text) return;
    const made =
      part.kind === "code"
        ? element("pre", { "data-kind": "code" }, element("code", { text: part.text }))
        : element("p", { "data-kind": "prose" }, ...inline(part.text));
    made.source = part.text;
    if (child) child.replaceWith(made);
    else node.append(made);
  });
  while (node.children.length > parts.length) node.lastChild.remove();
}

function split(text) {
  const parts = [];
  let kind = "prose";
  let lines = [];
  const flush = () => {
    if (lines.some((line) => line.trim())) parts.push({ kind, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const isFence = line.trimStart().startsWith("```");
    if (isFence || (kind === "prose" && !line.trim())) flush();
    else lines.push(line);
    if (isFence) kind = kind === "prose" ? "code" : "prose";
  }
  flush();
  return parts;
}

function inline(text) {
  return text.split(/(\*\*[^*\n]+\*\*|`[^`\n]+`|^#{1,6} .*$)/m).map((piece, k) => {
    if (k % 2 === 0) return piece;
    if (piece.startsWith("`")) return element("code", { text: piece.slice(1, -1) });
    return element("strong", { text: piece.startsWith("#") ? piece.replace(/^#+ /, "") : piece.slice(2, -2) });
  });
}
