// Heads as heat maps over the words of a sentence, and one word's weights in numbers.
import { Exploration, element, format, tint } from "./common.js";

export function start(about) {
  const page = new Exploration("attention");
  const { text, trained, layers, example } = about.attention;
  let answer = null;
  let chosen = trained ? Infinity : 1; // the last, which sees all; or the second

  page.section.dataset.trained = trained;
  page.part("about").textContent = `Here: ${text}.`;
  page.control("layer").replaceChildren(
    ...Array.from({ length: layers }, (_, i) => element("option", { value: i + 1, textContent: i + 1 })));
  page.control("layer").value = layers;
  page.control("text").value = example;

  function question() {
    const asked = { text: page.control("text").value };
    if (trained) asked.layer = Number(page.control("layer").value);
    else for (const name of ["causal", "positions"]) asked[name] = page.control(name).checked;
    return asked;
  }
  const update = () => page.ask(question, show);

  function show(found) {
    answer = found;
    chosen = Math.min(chosen, found.tokens.length - 1);
    page.part("top").textContent = format(found.limit);
    page.part("tokens").replaceChildren(...found.tokens.map((token, i) => {
      const chip = element("button", { type: "button", role: "radio", textContent: token });
      chip.addEventListener("click", () => choose(i));
      chip.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        choose((i + step + found.tokens.length) % found.tokens.length);
        page.part("tokens").children[chosen].focus();
      });
      return chip;
    }));
    page.part("heads").replaceChildren(...found.weights.map(heat));
    choose(chosen);
  }

  function heat(weights, head) {
    const { tokens, limit } = answer;
    const label = (token) => element("th", { textContent: token });
    const lines = weights.map((row, i) => {
      const line = element("tr", {}, element("th", { textContent: tokens[i], scope: "row" }));
      row.forEach((weight, j) => {
        const title = `${tokens[i]} → ${tokens[j]}: ${format(weight)}`;
        const cell = element("td", { title, "data-value": weight });
        tint(cell, weight, limit);
        line.append(cell);
      });
      line.addEventListener("click", () => choose(i));
      return line;
    });
    const made = element("figure", {}, element("figcaption", { textContent: `head ${head + 1}` }),
      element("table", { className: "heat", "aria-label": `weights of head ${head + 1}` },
        element("thead", {}, element("tr", {}, element("td"), ...tokens.map(label))),
        element("tbody", {}, ...lines)));
    made.style.setProperty("--pixel", tokens.length > 24 ? "10px" : tokens.length > 14 ? "14px" : "19px");
    return made;
  }

  function choose(row) {
    chosen = row;
    [...page.part("tokens").children].forEach((chip, i) => {
      chip.setAttribute("aria-checked", String(i === row));
      chip.tabIndex = i === row ? 0 : -1;
    });
    for (const body of page.part("heads").querySelectorAll("tbody")) {
      [...body.children].forEach((line, i) => line.classList.toggle("chosen", i === row));
    }
    const { tokens, weights, sums, limit } = answer;
    const head = element("tr", {}, element("th", { textContent: `“${tokens[row]}” looks at` }),
      ...tokens.map((token) => element("th", { textContent: token, scope: "col" })),
      element("th", { textContent: "sum", scope: "col" }));
    const lines = weights.map((one, h) => {
      const line = element("tr", {}, element("th", { textContent: `head ${h + 1}`, scope: "row" }));
      for (const weight of one[row]) {
        const cell = element("td", { className: "cell", textContent: format(weight), "data-value": weight });
        tint(cell, weight, limit);
        line.append(cell);
      }
      const sum = sums[h][row];
      line.append(element("td", {
        className: "total-sum", textContent: format(sum), "data-value": sum,
      }));
      return line;
    });
    page.part("row").replaceChildren(element("table", { className: "weights" },
      element("thead", {}, head), element("tbody", {}, ...lines)));
  }

  page.onEdit(update);
  update();
}
