// Loaded before the first paint, so that a chosen theme does not flash. Without a choice the system decides.
"use strict";
{
  const chosen = localStorage.getItem("octavo.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
