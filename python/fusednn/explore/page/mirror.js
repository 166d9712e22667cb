// A kernel beside its mirror images, for an input and for the flipped one.
import { Exploration, editor, element, format, numbers, resized, tintAll, whole } from "./common.js";

const examples = {
  1: [
    ["one spike", [[0, 1, 0, 0]], [[1, 2]]],
    ["a ramp", [[1, 2, 3, 4, 5, 6]], [[1, 0, -1]]],
    ["a kernel that is its own reverse", [[0, 3, 1, 0, 2, 0]], [[1, 2, 1]]],
  ],
  2: [
    ["a corner", [[1, 2, 0], [0, 1, 3], [2, 1, 0]], [[1, 0], [0, 2]]],
    ["a slanted line", [[3, 0, 0, 0], [0, 3, 0, 0], [0, 0, 3, 0], [0, 0, 0, 3]], [[1, -1], [-1, 1]]],
    ["left and right alike", [[1, 2, 0], [0, 1, 3], [2, 1, 0]], [[1, 1], [2, 2]]],
  ],
};
const most = { 1: { columns: 16, size: 7 }, 2: { columns: 8, size: 5 } };
const titles = {
  kernel: "the kernel", "left-right": "left and right swapped", "up-down": "up and down swapped",
  "both ways": "both swapped",
};
const copy = (rows) => rows.map((row) => [...row]);
const rows = (values) => (Array.isArray(values[0]) ? values : [values]);

export function start() {
  const page = new Exploration("mirror");
  const state = { dims: 1, input: null, kernel: null };
  let answer = null;
  let parts = {};

  const given = (values) => (state.dims === 1 ? values[0] : values);
  const question = () => ({
    dims: state.dims,
    input: given(state.input),
    kernel: given(state.kernel),
    padding: whole(page.control("padding")) ?? 0,
    combine: page.control("combine").value,
    axis: state.dims === 1 ? "horizontal" : page.control("axis").value,
    flip: state.dims === 1 ? "horizontal" : page.control("flip").value,
  });
  const update = () => page.ask(question, show);

  /** The frame: fields to edit, and a body for what is computed from them. */
  function build() {
    const make = () => element("div");
    parts = { input: make(), kernel: make(), flipped: element("div", { className: "computed" }) };
    const line = (...cells) => element("tr", {}, ...cells);
    const titled = (...texts) =>
      line(...texts.map((text) => element("th", { textContent: text, scope: "col" })));
    const cell = (...content) => element("td", {}, ...content);
    const head = element("thead", {},
      titled("", "Input", "Flipped input", ""),
      line(cell(), cell(parts.input), cell(parts.flipped), cell()),
      titled("Kernel", "Map of the input", "Map of the flipped input", ""));
    parts.body = element("tbody", { className: "computed" });
    const first = element("tbody", {}, element("tr", {}, element("td", {},
      element("span", { className: "kernel-name", textContent: titles.kernel }), parts.kernel)));
    parts.first = first.firstChild;
    page.part("table").replaceChildren(element("table", {}, head, first, parts.body));
    editor(parts.input, state.input, "input", update);
    editor(parts.kernel, state.kernel, "kernel", update);
    update();
  }

  function verdict(one) {
    return element("td", { className: "verdict", "data-follows": one.follows },
      element("b", {}, one.follows ? "✓ " : "✗ ",
        element("span", { textContent: one.follows ? "the same map, flipped" : "another map" })),
      element("span", { textContent: one.follows ? "" : `differs by up to ${format(one.difference)}` }));
  }

  function maps(one, limit, label) {
    return [["map", "of the input"], ["flipped", "of the flipped input"]].map(([key, of]) => {
      const cell = element("td", { className: "computed", "data-map": `${label} ${key}` });
      numbers(cell, rows(one[key]), limit, `${label}, map ${of}`);
      return cell;
    });
  }

  function show(found) {
    answer = found;
    const { input, kernel, map } = found.limits;
    tintAll(parts.input, state.input, input);
    tintAll(parts.kernel, state.kernel, kernel);
    numbers(parts.flipped, rows(found.flipped), input, "flipped input");
    parts.first.replaceChildren(
      parts.first.firstChild, ...maps(found.maps[0], map, "kernel"), verdict(found.maps[0]));
    const lines = found.maps.slice(1).map((one) => {
      const weights = element("div");
      numbers(weights, rows(one.weights), kernel, titles[one.name]);
      return element("tr", {}, element("td", {},
        element("span", { className: "kernel-name", textContent: titles[one.name] }), weights),
        ...maps(one, map, one.name), verdict(one));
    });
    const how = page.control("combine").selectedOptions[0].textContent;
    lines.push(element("tr", { className: "result" },
      element("th", { scope: "row", textContent: `combined: ${how}` }),
      ...maps(found.combined, map, "combined"), verdict(found.combined)));
    parts.body.replaceChildren(...lines);
  }

  function take([, input, kernel]) {
    Object.assign(state, { input: copy(input), kernel: copy(kernel) });
    page.control("columns").value = input[0].length;
    page.control("size").value = kernel[0].length;
    build();
  }

  function choose(dims) {
    state.dims = dims;
    page.section.dataset.dims = dims;
    for (const [name, value] of Object.entries(most[dims])) page.control(name).max = value;
    page.control("example").replaceChildren(
      ...examples[dims].map(([name], i) => element("option", { value: i, textContent: name })));
    take(examples[dims][0]);
  }

  page.onEdit((control) => {
    const { name, value } = control;
    if (name === "dims") choose(Number(value));
    else if (name === "example") take(examples[state.dims][value]);
    else if (name === "columns" || name === "size") {
      const size = whole(control);
      if (size === null) return;
      const part = name === "size" ? "kernel" : "input";
      state[part] = resized(state[part], state.dims === 1 ? 1 : size, size);
      build();
    } else update();
  });
  page.section.querySelector("[data-go=flip]").addEventListener("click", () => {
    if (!answer || page.section.dataset.state !== "ready") return;
    state.input = copy(rows(answer.flipped));
    build();
  });
  choose(1);
}
