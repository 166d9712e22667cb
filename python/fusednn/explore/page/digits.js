// A canvas to draw on, and everything that a small network computes for the drawing.
import { Exploration, element, format, numbers, picture, short } from "./common.js";

const most = 1900; // points of a drawing; the server takes a few more

export function start() {
  const page = new Exploration("digits");
  const canvas = page.section.querySelector("canvas");
  const ink = canvas.getContext("2d");
  let strokes = [];
  let sample = { sample: 3, number: 0 };
  let chosen = [0, 0]; // layer, map
  let pen = { x: 0.5, y: 0.2, down: false }; // of the keyboard
  let answer = null;

  const question = () => (strokes.length ? { strokes } : sample);
  const waiting = "The network is being prepared (it learns on first use).";
  const update = () => page.ask(question, show, answer ? "" : waiting);

  function draw() {
    ink.clearRect(0, 0, canvas.width, canvas.height);
    ink.lineWidth = 18;
    ink.lineCap = ink.lineJoin = "round";
    ink.strokeStyle = "#1b1f24";
    for (const line of strokes) {
      ink.beginPath();
      line.forEach(([x, y], i) => ink[i ? "lineTo" : "moveTo"](x * canvas.width, y * canvas.height));
      if (line.length === 1) ink.lineTo(line[0][0] * canvas.width, line[0][1] * canvas.height);
      ink.stroke();
    }
    if (document.activeElement === canvas) {
      ink.fillStyle = pen.down ? "#c2600a" : "#1f63b0";
      ink.beginPath();
      ink.arc(pen.x * canvas.width, pen.y * canvas.height, 6, 0, 7);
      ink.fill();
    }
  }

  const count = () => strokes.reduce((sum, line) => sum + line.length, 0);
  const within = (v) => Math.min(1, Math.max(0, Number(v.toFixed(4))));

  function extend(x, y) {
    if (count() < most) strokes.at(-1).push([within(x), within(y)]);
    draw();
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (count() >= most) return;
    strokes.push([]);
    extend(...place(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.hasPointerCapture(event.pointerId) || !strokes.length) return;
    for (const one of event.getCoalescedEvents?.() ?? [event]) extend(...place(one));
  });
  canvas.addEventListener("pointerup", () => {
    // A dot is no digit yet: the server would say so.
    if (strokes.length && (strokes.length > 1 || strokes[0].length > 2)) update();
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (!move && event.key !== " ") return;
    event.preventDefault();
    if (move) {
      pen = { ...pen, x: within(pen.x + 0.04 * move[0]), y: within(pen.y + 0.04 * move[1]) };
      if (pen.down) {
        extend(pen.x, pen.y);
        update();
      }
    } else {
      pen.down = !pen.down;
      if (pen.down && count() < most) strokes.push([[pen.x, pen.y]]);
    }
    draw();
  });
  canvas.addEventListener("focus", draw);
  canvas.addEventListener("blur", () => {
    pen.down = false;
    draw();
  });

  function show(found) {
    answer = found;
    numbersOf(page.part("picture"), found.picture);
    bars(found);
    const lines = found.layers.map((layer, l) => element("div", {},
      element("h2", { textContent: `${l + 1}. ${layer.name}` }),
      element("div", { className: "line" }, ...layer.maps.map((map, m) => {
        const button = element("button", {
          type: "button", "data-map": `${l} ${m}`, "aria-label": `${layer.name}, map ${m + 1}`,
        }, picture(map, layer.limit, `map ${m + 1}`));
        button.style.setProperty("--side", layer.maps.length > 8 ? "32px" : "46px");
        button.style.setProperty("--count", map.length);
        button.addEventListener("click", () => choose(l, m));
        return button;
      }))));
    // One column for each convolution, and what follows it.
    const half = lines.length / 2;
    page.part("maps").replaceChildren(
      element("div", {}, ...lines.slice(0, half)), element("div", {}, ...lines.slice(half)));
    choose(...chosen);
  }

  function numbersOf(container, values) {
    const made = picture(values, 1, "the picture that the network gets, 8 x 8", true);
    made.style.setProperty("--pixel", "1.4rem");
    container.replaceChildren(made);
  }

  function bars(found) {
    const list = element("div", { className: "bars" });
    found.probabilities.forEach((probability, digit) => {
      const bar = element("i");
      bar.style.setProperty("--share", `${100 * probability}%`);
      const kind = digit === found.answer ? "best" : "";
      list.append(
        element("span", { textContent: digit, className: kind }), element("span", {}, bar),
        element("span", {
          textContent: format(probability), className: kind, "data-digit": digit,
          "data-value": probability, title: `score ${found.scores[digit]}`,
        }));
    });
    page.part("scores").replaceChildren(list);
    page.part("accuracy").textContent = `right for ${format(found.accuracy)} of the test digits`;
  }

  function choose(l, m) {
    chosen = [l, m];
    const layer = answer.layers[l];
    for (const button of page.part("maps").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.map === `${l} ${m}`));
    }
    page.part("detail-title").textContent = `One map in numbers: ${layer.name}, map ${m + 1}`;
    const map = element("div", { "data-part": "numbers" });
    numbers(map, layer.maps[m], layer.limit, "map", null, short);
    const parts = [map];
    if (l === 0) {
      const kernel = element("div");
      numbers(kernel, answer.kernels[m], answer.limits.kernels, "kernel", null, short);
      const title = element("span", { className: "kernel-name", textContent: "its kernel" });
      parts.push(element("div", {}, title, kernel));
    }
    page.part("detail").replaceChildren(...parts);
  }

  for (let digit = 0; digit < 10; digit++) {
    const button = element("button", { type: "button", textContent: digit, "aria-label": `a ${digit}` });
    button.addEventListener("click", () => {
      const again = !strokes.length && sample.sample === digit;
      sample = { sample: digit, number: again ? sample.number + 1 : 0 };
      strokes = [];
      draw();
      update();
    });
    page.part("samples").append(button);
  }
  page.section.querySelector("[data-go=clear]").addEventListener("click", () => {
    strokes = [];
    pen.down = false;
    draw();
    canvas.focus();
  });
  draw();
  update();
}
