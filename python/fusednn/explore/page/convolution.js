// One window after the other: what lies under the kernel, its products, their sum.
import {
  Exploration, editor, element, field, format, numbers, resized, table, tint, tintAll, whole,
} from "./common.js";

const examples = {
  1: [
    ["a pattern to find", [[0, 0, 0, 1, 0, 1, 1, 1, 0, 0]], [[1, -1, 1]]],
    ["a step, and its slope", [[0, 0, 0, 4, 4, 4, 4, 0, 0, 0]], [[-1, 1]]],
    ["smoothing by a mean", [[1, 5, 2, 6, 3, 7, 4, 8]], [[0.25, 0.5, 0.25]]],
  ],
  2: [
    ["a diagonal",
      [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0]],
      [[1, 0, 1], [0, 1, 0], [1, 0, 1]]],
    ["an upright edge", Array.from({ length: 5 }, () => [0, 0, 0, 3, 3, 3]),
      [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]],
    ["one point",
      [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
      [[1, 2, 3], [4, 5, 6], [7, 8, 9]]],
  ],
};
const most = { 1: { columns: 24, size: 9 }, 2: { columns: 10, size: 5 } };
const copy = (rows) => rows.map((row) => [...row]);

export function start() {
  const page = new Exploration("convolution");
  const state = { dims: 1, input: null, kernel: null, padding: 0, stride: 1, at: 0 };
  const slider = page.section.querySelector("[name=position]");
  const play = page.section.querySelector("[data-go=play]");
  let answer = null;
  let timer = 0;

  const question = () => ({
    dims: state.dims,
    input: state.dims === 1 ? state.input[0] : state.input,
    kernel: state.dims === 1 ? state.kernel[0] : state.kernel,
    padding: state.padding,
    stride: state.stride,
    flip: page.control("flip").checked,
  });
  const update = () => page.ask(question, show);

  function build() {
    const [rows, columns] = [state.input.length, state.input[0].length];
    const [down, across] = [state.dims === 1 ? 0 : state.padding, state.padding];
    table(page.part("input"), rows + 2 * down, columns + 2 * across, "input", (r, c) => {
      const [i, j] = [r - down, c - across];
      if (i < 0 || i >= rows || j < 0 || j >= columns) {
        return element("span", { className: "cell pad", textContent: "0", title: "padding" });
      }
      const name = state.dims === 1 ? `input ${j + 1}` : `input row ${i + 1}, column ${j + 1}`;
      return field(state.input[i][j], name, (value) => {
        state.input[i][j] = value;
        update();
      });
    });
    editor(page.part("kernel"), state.kernel, "kernel", update);
    update();
  }

  function show(found) {
    answer = found;
    const columns = found.output[0].length;
    const { input, kernel, output } = found.limits;
    tintAll(page.part("input"), found.padded, input);
    tintAll(page.part("kernel"), state.kernel, kernel);
    numbers(page.part("output"), found.output, output, "output", (r, c) => go(r * columns + c));
    slider.max = found.corners.length - 1;
    go(Math.min(state.at, found.corners.length - 1));
  }

  function go(position) {
    if (!answer) return;
    state.at = position;
    slider.value = position;
    const [top, left] = answer.corners[position];
    const [tall, wide] = [answer.kernel.length, answer.kernel[0].length];
    const columns = answer.padded[0].length;
    page.part("input").querySelectorAll(".cell").forEach((cell, i) => {
      const [r, c] = [Math.floor(i / columns), i % columns];
      cell.classList.toggle("under", r >= top && r < top + tall && c >= left && c < left + wide);
    });
    page.part("output").querySelectorAll(".cell").forEach((cell, i) => {
      cell.setAttribute("aria-pressed", String(i === position));
    });
    const shaped = (flat) => answer.kernel.map((_, r) => flat.slice(r * wide, (r + 1) * wide));
    const { input, kernel, products, output } = answer.limits;
    numbers(page.part("window"), shaped(answer.windows[position]), input, "window");
    numbers(page.part("used"), answer.kernel, kernel, "kernel as used");
    numbers(page.part("products"), shaped(answer.products[position]), products, "products");
    const sum = answer.output.flat()[position];
    const cell = element("span", { className: "cell", textContent: format(sum), "data-value": sum });
    tint(cell, sum, output);
    page.part("sum").replaceChildren(cell);
    page.part("used-title").textContent = page.control("flip").checked ? "Kernel, flipped" : "Kernel";
    page.part("where").textContent =
      `position ${position + 1} of ${answer.corners.length}` +
      (state.dims === 2 ? `: row ${top + 1}, column ${left + 1}` : "");
  }

  function take([, input, kernel]) {
    Object.assign(state, { input: copy(input), kernel: copy(kernel), at: 0 });
    page.control("rows").value = input.length;
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

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.setAttribute("aria-pressed", "false");
  }

  page.onEdit((control) => {
    const { name, value } = control;
    if (name === "dims") choose(Number(value));
    else if (name === "example") take(examples[state.dims][value]);
    else if (name === "flip") update();
    else {
      const number = whole(control);
      if (number === null) return;
      const rows = state.dims === 1 ? 1 : whole(page.control("rows")) ?? state.input.length;
      if (name === "padding" || name === "stride") state[name] = number;
      else if (name === "size") {
        state.kernel = resized(state.kernel, state.dims === 1 ? 1 : number, number);
      } else {
        const columns = whole(page.control("columns")) ?? state.input[0].length;
        state.input = resized(state.input, rows, columns);
      }
      build();
    }
  });
  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  page.section.querySelector(".walk").addEventListener("click", (event) => {
    const last = answer ? answer.corners.length - 1 : 0;
    const step = event.target.dataset?.go;
    if (step === "play" && !timer) {
      play.setAttribute("aria-pressed", "true");
      timer = setInterval(() => {
        if (page.section.hidden) stop();
        else go(state.at < answer.corners.length - 1 ? state.at + 1 : 0);
      }, 900);
      return;
    }
    if (step) stop();
    if (step === "first") go(0);
    if (step === "back") go(Math.max(0, state.at - 1));
    if (step === "next") go(Math.min(last, state.at + 1));
    if (step === "last") go(last);
  });
  choose(1);
}
