// Wires the page: theme, views, settings, chat and memory.
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { MemoryView } from "./memory.js";
import { Settings } from "./settings.js";

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function startTheme(onChange) {
  const root = document.documentElement;
  const button = byId("theme");
  const isDark = () => (root.dataset.theme ?? (systemIsDark.matches ? "dark" : "light")) === "dark";
  const told = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    onChange();
  };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    const systems = systemIsDark.matches ? "dark" : "light";
    if (next === systems) {
      // What the system wants anyway needs no choice, and goes on following it.
      delete root.dataset.theme;
      localStorage.removeItem("octavo.theme");
    } else {
      root.dataset.theme = next;
      localStorage.setItem("octavo.theme", next);
    }
    told();
  });
  systemIsDark.addEventListener("change", told);
  told();
}

function goTo(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll("[data-goto]")) {
    if (button.dataset.goto === view) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

const memory = new MemoryView();
const settings = new Settings(() => memory.reconnect());
new Chat(settings, (responseId) => {
  goTo("memory");
  memory.select(responseId);
});
for (const button of document.querySelectorAll("[data-goto]")) {
  button.addEventListener("click", () => goTo(button.dataset.goto));
}
startTheme(() => memory.recolour());
settings.loadModels();
memory.start();
