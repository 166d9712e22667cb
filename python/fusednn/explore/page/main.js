// Shows the exploration that the address names, and starts each when it is first shown.
import * as attention from "./attention.js";
import * as convolution from "./convolution.js";
import * as digits from "./digits.js";
import * as mirror from "./mirror.js";
import * as rotation from "./rotation.js";

const starts = {
  convolution: convolution.start,
  mirror: mirror.start,
  rotation: rotation.start,
  digits: digits.start,
  attention: attention.start,
};
const started = new Set();
const about = await (await fetch("/about.json")).json();
document.getElementById("about").textContent =
  `Computed on this machine by fusednn ${about.version}: ${about.isa} kernels, ` +
  `${about.threads} ${about.threads === 1 ? "thread" : "threads"}`;

function show() {
  const asked = location.hash.slice(1);
  if (asked === "content" && started.size) return; // the link that skips the menu
  const name = asked in starts ? asked : "convolution";
  for (const section of document.querySelectorAll("main > section")) {
    section.hidden = section.id !== name;
  }
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${document.getElementById(`${name}-title`).textContent} – fusednn`;
  if (!started.has(name)) {
    started.add(name);
    starts[name](about);
  }
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", show);
show();

document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.style.colorScheme
    ? root.style.colorScheme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.style.colorScheme = dark ? "light" : "dark";
});
