// One orientation's score beside the mean and the maximum over four, as the picture turns.
import { Exploration, editor, element, format, picture, table, tintAll, whole } from "./common.js";

const parse = (text) => text.split(" ").map((row) => [...row].map(Number));
const examples = [
  ["an L", "0000000 0100000 0100000 0100000 0100000 0111100 0000000"],
  ["an arrow", "0001000 0011100 0101010 0001000 0001000 0001000 0000000"],
  ["a seven", "0000000 0111110 0000010 0000100 0001000 0001000 0000000"],
  ["a plus, which no quarter turn changes", "0000000 0001000 0001000 0111110 0001000 0001000 0000000"],
];

export function start() {
  const page = new Exploration("rotation");
  const kernel = [[1, -1, -1], [1, -1, -1], [1, 1, 1]]; // a corner, as the L has one
  let image = parse(examples[0][1]);
  let angle = 0;

  function question() {
    const network = page.control("network").value;
    const asked = { image, angle, network };
    if (network === "filter") asked.kernel = kernel;
    else asked.weights = whole(page.control("weights")) ?? 0;
    return asked;
  }
  const update = () => page.ask(question, show);

  function build() {
    const place = page.part("image");
    place.className = "toggles";
    table(place, image.length, image.length, "picture", (r, c) => {
      const cell = element("button", {
        type: "button", className: "cell", "aria-pressed": String(image[r][c] !== 0),
        "aria-label": `row ${r + 1}, column ${c + 1}`,
      });
      cell.addEventListener("click", () => {
        image[r][c] = 1 - image[r][c];
        cell.setAttribute("aria-pressed", String(image[r][c] !== 0));
        update();
      });
      return cell;
    });
    update();
  }

  function view(values, score, turn, limit) {
    const seen = turn === 0;
    const made = element("figure", { className: seen ? "seen" : "" },
      picture(values, limit, `the picture, turned ${turn}° further`, true),
      element("figcaption", { textContent: seen ? "as it is" : `+${turn}°` }),
      element("b", { textContent: format(score), "data-value": score }));
    made.style.setProperty("--pixel", ".9rem");
    return made;
  }

  function show(found) {
    page.part("angle").textContent =
      `The picture turned by ${angle}°, in its four orientations, with the score of each`;
    page.part("views").replaceChildren(
      ...found.views.map((values, k) => view(values, found.scores[k], 90 * k, found.limits.image)),
      element("div", { className: "pooled" },
        ...[["mean of the four", "mean"], ["maximum", "max"]].flatMap(([name, kind]) => [
          element("span", { textContent: name }),
          element("b", {
            textContent: format(found[kind]), "data-value": found[kind], "data-pooled": kind,
          }),
        ])));
    tintAll(page.part("kernel"), kernel, Math.max(...kernel.flat().map(Math.abs)) || 1);
    chart(found);
    rows(found);
  }

  function rows(found) {
    const head = element("tr", {}, ...["turned by", "one orientation", "mean", "maximum"].map(
      (text) => element("th", { textContent: text, scope: "col" })));
    const lines = found.turns.map((turn) => element("tr", { className: turn.angle === angle ? "now" : "" },
      element("td", { textContent: `${turn.angle}°` }),
      ...["score", "mean", "max"].map((key) =>
        element("td", { textContent: format(turn[key]), "data-value": turn[key] }))));
    page.part("table").replaceChildren(
      element("table", { className: "data" }, element("thead", {}, head), element("tbody", {}, ...lines)));
  }

  /** Three rows of marks over the angle, filled and joined where quarter turns lead. */
  function chart({ turns, limits }) {
    const [width, height, left, right, top, bottom] = [760, 230, 55, 150, 14, 30];
    const values = turns.flatMap((turn) => [turn.score, turn.mean, turn.max]);
    const [low, high] = [Math.min(0, ...values), Math.max(0, ...values) || limits.score];
    const x = (a) => left + ((width - left - right) * a) / 315;
    const y = (v) => top + ((height - top - bottom) * (high - v)) / (high - low);
    const svg = (tag, attributes, ...children) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      made.append(...children);
      return made;
    };
    const line = (x1, y1, x2, y2) => svg("line", { class: "axis", x1, y1, x2, y2 });
    const text = (px, py, anchor, content) =>
      svg("text", { class: "label", x: px, y: py, "text-anchor": anchor }, content);
    const parts = [line(left, y(0), width - right, y(0)), text(left - 8, y(0) + 4, "end", "0"),
      line(x(angle), top, x(angle), height - bottom)];
    if (high > 0) parts.push(text(left - 8, y(high) + 4, "end", format(high)));
    if (low < 0) parts.push(text(left - 8, y(low) + 4, "end", format(low)));
    for (const turn of turns) parts.push(text(x(turn.angle), height - 8, "middle", `${turn.angle}°`));
    const names = { max: "maximum", mean: "mean", score: "one orientation" };
    Object.entries(names).forEach(([key, name], i) => {
      const points = turns.filter((turn) => turn.angle % 90 === 0)
        .map((turn) => `${x(turn.angle)},${y(turn[key])}`).join(" ");
      const marks = turns.map((turn) => svg("circle", {
        cx: x(turn.angle), cy: y(turn[key]), r: 4, "stroke-width": 2, class: turn.angle % 90 ? "hollow" : "",
      }));
      const [from, level] = [width - right + 16, top + 12 + 22 * i];
      parts.push(svg("g", { class: key }, svg("polyline", { points }), ...marks,
        svg("polyline", { points: `${from},${level - 4} ${from + 24},${level - 4}` })),
        text(from + 30, level, "start", name));
    });
    page.part("chart").replaceChildren(svg("svg", {
      viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": "score of one orientation, mean and maximum over the angle; the table has the numbers",
    }, ...parts));
  }

  page.control("example").replaceChildren(
    ...examples.map(([name], i) => element("option", { value: i, textContent: name })));
  page.onEdit(({ name, value }) => {
    if (name === "example") {
      image = parse(examples[value][1]);
      angle = 0;
      build();
      return;
    }
    page.section.dataset.network = page.control("network").value;
    update();
  });
  page.form.addEventListener("click", (event) => {
    const turn = event.target.dataset?.turn;
    if (turn === undefined) return;
    angle = turn === "0" ? 0 : (angle + Number(turn)) % 360;
    update();
  });
  page.section.dataset.network = "filter";
  editor(page.part("kernel"), kernel, "kernel", update);
  build();
}
