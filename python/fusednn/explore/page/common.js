// What all explorations share. Nothing is computed here: numbers come from the server as they are
// shown; the page only formats them, and makes colours and lengths of them.

const formatter = (digits) => {
  const inner = new Intl.NumberFormat("en", {
    maximumFractionDigits: digits, useGrouping: false, signDisplay: "negative",
  });
  return (value) => inner.format(value).replace("-", "−");
};

/** A number as text, with a proper minus sign; short where there is little room. */
export const format = formatter(3);
export const short = formatter(2);

/** An element with properties, data-*, aria-* and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Colours an element by a value: blue above zero, orange below, fully at the limit. */
export function tint(cell, value, limit) {
  cell.classList.toggle("neg", value < 0);
  const share = Math.min(100, (100 * Math.abs(value ?? 0)) / limit);
  cell.style.setProperty("--share", `${share.toFixed(1)}%`);
}

const place = (rows, r, c) => (rows === 1 ? `${c + 1}` : `row ${r + 1}, column ${c + 1}`);

/** A table of cells made by make(r, c), into a container. */
export function table(container, rows, columns, label, make) {
  const body = element("tbody");
  for (let r = 0; r < rows; r++) {
    const line = element("tr");
    for (let c = 0; c < columns; c++) line.append(element("td", {}, make(r, c)));
    body.append(line);
  }
  const small = rows > 8 || columns > 12;
  container.replaceChildren(
    element("table", { className: small ? "grid small" : "grid", "aria-label": label }, body));
}

/** Numbers to read. onChoose(r, c) makes buttons of them. */
export function numbers(container, values, limit, label, onChoose = null, written = format) {
  table(container, values.length, values[0].length, label, (r, c) => {
    const value = values[r][c];
    const text = written(value);
    const cell = element(onChoose ? "button" : "span", {
      className: text.length > 4 ? "cell tight" : "cell", textContent: text,
      title: String(value), "data-value": value,
    });
    if (onChoose) {
      cell.type = "button";
      cell.setAttribute("aria-label", `${label} ${place(values.length, r, c)}: ${text}`);
      cell.addEventListener("click", () => onChoose(r, c));
    }
    tint(cell, value, limit);
    return cell;
  });
}

/** A field for one number; onChange(number, or null where there is none). */
export function field(value, label, onChange) {
  const cell = element("input", {
    type: "number", step: "any", required: true, className: "cell", value: value ?? "",
    "aria-label": label,
  });
  cell.addEventListener("input", () => onChange(cell.value === "" ? null : Number(cell.value)));
  cell.addEventListener("focus", () => cell.select());
  return cell;
}

/** Numbers to edit, in place: values[r][c] follows what is typed, then onChange(). */
export function editor(container, values, label, onChange) {
  table(container, values.length, values[0].length, label, (r, c) =>
    field(values[r][c], `${label} ${place(values.length, r, c)}`, (value) => {
      values[r][c] = value;
      onChange();
    }));
}

/** Colours the cells of a table by the values they show. */
export function tintAll(container, values, limit) {
  const cells = container.querySelectorAll(".cell");
  values.flat().forEach((value, i) => cells[i] && tint(cells[i], value, limit));
}

/** Values as a picture without numbers. */
export function picture(values, limit, label, sequential = false) {
  const made = element("span", {
    className: sequential ? "picture seq" : "picture", role: "img", "aria-label": label,
  });
  made.style.gridTemplateColumns = `repeat(${values[0].length}, auto)`;
  for (const value of values.flat()) {
    const pixel = element("i");
    tint(pixel, value, limit);
    made.append(pixel);
  }
  return made;
}

/** Rows x columns of values, those of the old where it has them, else 0. */
export const resized = (values, rows, columns) =>
  Array.from({ length: rows }, (_, r) =>
    Array.from({ length: columns }, (_, c) => values[r]?.[c] ?? 0));

/** A whole number of a form, kept between its min and max; null while nothing sensible is typed. */
export function whole(input) {
  const value = input.valueAsNumber;
  if (!Number.isInteger(value)) return null;
  return Math.min(Number(input.max), Math.max(Number(input.min), value));
}

/** One section of the page: asks the server, one question at a time, always the latest one. */
export class Exploration {
  constructor(name) {
    this.name = name;
    this.section = document.getElementById(name);
    this.form = this.section.querySelector("form");
    this.status = this.section.querySelector(".status");
    this.form?.addEventListener("submit", (event) => event.preventDefault());
    this.section.dataset.state = "ready";
  }

  part(name) {
    return this.section.querySelector(`[data-part="${name}"]`);
  }

  control(name) {
    return this.form.elements[name];
  }

  /** Calls back with the control that has changed: a field while it is typed in, a list when
   *  something is chosen from it. */
  onEdit(handle) {
    for (const type of ["input", "change"]) {
      this.form.addEventListener(type, ({ target }) => {
        if ((target.tagName === "SELECT") === (type === "change")) handle(target);
      });
    }
  }

  /** Asks soon (further calls in between join); show(answer) gets the answer. */
  ask(question, show, waiting = "") {
    this.next = { question, show };
    this.section.dataset.state = "busy";
    if (waiting) this.status.textContent = waiting;
    if (this.running) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#run(), 60);
  }

  async #run() {
    this.running = true;
    try {
      while (this.next) {
        const { question, show } = this.next;
        this.next = null;
        const { answer, failure } = await this.#answered(question());
        if (this.next) continue;
        if (answer) show(answer);
        this.status.textContent = failure ?? "";
        this.section.dataset.state = failure ? "error" : "ready";
      }
    } finally {
      this.running = false;
    }
  }

  async #answered(question) {
    let response;
    try {
      response = await fetch(`/api/${this.name}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(question),
      });
    } catch {
      return { failure: "The server has ended: start it again in its terminal." };
    }
    return response.ok
      ? { answer: await response.json() } : { failure: (await response.text()).trim() };
  }
}
