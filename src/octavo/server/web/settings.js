// What the user wants of the model, in a dialog. Kept in this browser; the API key only in this tab.
import { getApiKey, getJson, setApiKey } from "./api.js";
import { byId, element, setText } from "./dom.js";

const STORED = "octavo.settings";
// Small models say sensible things more often when they are a little careful.
const FIRST = { temperature: "0.6" };
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

export class Settings {
  #dialog = byId("settings");
  #form = byId("settings-form");
  #onKeyChange;

  constructor(onKeyChange) {
    this.#onKeyChange = onKeyChange;
    this.#restore();
    byId("open-settings").addEventListener("click", () => this.open());
    byId("reset-settings").addEventListener("click", () => this.#reset());
    this.#dialog.addEventListener("close", () => this.#keep());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close(); // the backdrop
    });
  }

  open() {
    this.#form.elements.api_key.value = getApiKey();
    this.#dialog.showModal();
  }

  get system() {
    return this.#form.elements.system.value.trim();
  }

  /** The parameters of a request: what is empty is left out. */
  parameters() {
    const fields = this.#form.elements;
    const result = { model: fields.model.value };
    for (const name of NUMBERS) {
      if (fields[name].value.trim() !== "") result[name] = Number(fields[name].value);
    }
    return result;
  }

  /** Asks the server what it serves. Without an answer the list stays empty, and a request says why. */
  async loadModels() {
    const select = this.#form.elements.model;
    let names = [];
    try {
      names = (await getJson("/v1/models")).data.map((model) => model.id);
    } catch {
      return; // the feed and the chat tell what is wrong
    }
    const wanted = select.value || this.#stored().model;
    select.replaceChildren(...names.map((name) => element("option", { value: name, text: name })));
    select.value = names.includes(wanted) ? wanted : (names[0] ?? "");
    setText(byId("model-name"), select.value);
  }

  #stored() {
    try {
      return JSON.parse(localStorage.getItem(STORED)) ?? {};
    } catch {
      return {};
    }
  }

  #restore() {
    const stored = this.#stored();
    for (const name of [...NUMBERS, "system"]) this.#form.elements[name].value = stored[name] ?? FIRST[name] ?? "";
  }

  #keep() {
    const fields = this.#form.elements;
    const stored = Object.fromEntries(
      ["model", "system", ...NUMBERS].map((name) => [name, fields[name].value]),
    );
    localStorage.setItem(STORED, JSON.stringify(stored));
    setText(byId("model-name"), fields.model.value);
    const key = fields.api_key.value.trim();
    if (key === getApiKey()) return;
    setApiKey(key);
    this.loadModels();
    this.#onKeyChange();
  }

  #reset() {
    for (const name of [...NUMBERS, "system"]) this.#form.elements[name].value = FIRST[name] ?? "";
  }
}
