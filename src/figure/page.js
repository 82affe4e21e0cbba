"use strict";
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const { rows, columns, tokens } = data;
const n = tokens.length;
const FONT = '"DejaVu Sans Mono", Menlo, Consolas, monospace';
const MAX_LABEL = 24;

// The weights, (rows, columns, n, n), as the bits of f16.
const weights = (() => {
  const text = $("weights").textContent;
  if (Uint8Array.fromBase64) return new Uint16Array(Uint8Array.fromBase64(text).buffer);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Uint16Array(bytes.buffer);
})();

// The f32 value of every f16.
const values = Float32Array.from({ length: 65536 }, (_, bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

// The position of a value in a palette, whose middle is 0; colours change with the square root of the value.
const middle = (data.light.length - 1) / 2;
const level = value => {
  if (!Number.isFinite(value)) return middle;
  const position = Math.sqrt(Math.min(1, Math.abs(value) / data.max)) * middle;
  return middle + Math.sign(value) * Math.round(position);
};
const levels = Uint8Array.from(values, level);

const state = { row: rows.length - 1, column: 0, query: null, kept: null, key: null };
let palette, pixels; // CSS colours by level; RGBA by f16

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  palette = data[theme];
  const rgba = palette.map(hex => {
    const [r, g, b] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  });
  pixels = Uint32Array.from(levels, level => rgba[level]);
}

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shorten = text => {
  const letters = [...text];
  return letters.length > MAX_LABEL ? letters.slice(0, MAX_LABEL - 1).join("") + "…" : text;
};
const labels = tokens.map(([text]) => shorten(text));
const offset = (row, column) => (row * columns.length + column) * n * n;
const weight = (query, key) => values[weights[offset(state.row, state.column) + query * n + key]];

// Sets the size of a canvas in CSS pixels, and returns its context.
function resize(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// A matrix as an image with a pixel per weight.
const cells = document.createElement("canvas");
cells.width = cells.height = n;
function image(row, column) {
  const context = cells.getContext("2d");
  const picture = context.createImageData(n, n);
  const target = new Uint32Array(picture.data.buffer);
  const from = offset(row, column);
  for (let i = 0; i < target.length; i++) target[i] = pixels[weights[from + i]];
  context.putImageData(picture, 0, 0);
  return cells;
}

// Cells of 9 pixels have readable labels; a matrix is 720 pixels wide, or for that up to 1440.
const map = { cell: Math.max(2, Math.min(30, Math.floor(Math.max(720, Math.min(1440, 9 * n)) / n))), margin: 8 };
map.font = Math.min(13, 0.86 * map.cell);
map.hasLabels = map.cell >= 6;

function drawMap() {
  const canvas = $("map"), { cell, font } = map, side = cell * n;
  let context = canvas.getContext("2d");
  if (map.hasLabels) {
    context.font = font + "px " + FONT;
    map.margin = 8 + Math.max(...labels.map(label => context.measureText(label).width));
  }
  const { margin } = map;
  context = resize(canvas, margin + side + 2, margin + side + 2);
  context.imageSmoothingEnabled = false;
  context.drawImage(image(state.row, state.column), margin, margin, side, side);
  context.strokeStyle = css("--border");
  context.strokeRect(margin - 0.5, margin - 0.5, side + 1, side + 1);
  if (map.hasLabels) drawLabels(context);
  context.strokeStyle = css("--mark");
  context.lineWidth = 2;
  if (state.query !== null) context.strokeRect(margin, margin + state.query * cell, side, cell);
  canvas.setAttribute("aria-label", `Attention of ${rows[state.row]}, ${columns[state.column]}`);
}

function drawLabels(context) {
  const { cell, font, margin } = map;
  context.textBaseline = "middle";
  for (let i = 0; i < n; i++) {
    const at = margin + (i + 0.5) * cell;
    const fill = css(tokens[i][1] ? "--special" : "--text");
    context.fillStyle = fill;
    context.font = (i === state.query ? "bold " : "") + font + "px " + FONT;
    context.textAlign = "right";
    context.fillText(labels[i], margin - 4, at);
    context.save();
    context.translate(at, margin - 4);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.font = (i === state.key ? "bold " : "") + font + "px " + FONT;
    context.fillText(labels[i], 0, 0);
    context.restore();
  }
}

function drawLegend() {
  const width = 320, start = data.negative ? -1 : 0;
  const context = resize($("legend"), width + 40, 40);
  const x = position => 16 + (position - start) / (1 - start) * width;
  for (let i = start * middle; i <= middle; i++) {
    context.fillStyle = palette[middle + i];
    context.fillRect(x(i / middle), 8, width / ((1 - start) * middle) + 1, 12);
  }
  context.fillStyle = css("--muted");
  context.font = "11px " + FONT;
  context.textAlign = "center";
  for (const [value, position] of data.ticks) context.fillText(+value.toPrecision(2), x(position), 34);
}

// The overview: a small image per layer and head.
const isLarge = map.cell * n > 800; // leaves no room for the overview beside it
const grid = { cell: Math.max(14, Math.min(isLarge ? 26 : 44, Math.floor(640 / columns.length))), left: 62, top: 62 };

function drawGrid() {
  const { cell, left, top } = grid;
  grid.width = left + columns.length * cell + 2;
  grid.height = top + rows.length * cell + 2;
  // Kept, so that another selection draws it at once.
  grid.picture = document.createElement("canvas");
  const context = resize(grid.picture, grid.width, grid.height);
  context.font = "11px " + FONT;
  context.fillStyle = css("--muted");
  context.textBaseline = "middle";
  context.imageSmoothingEnabled = n > cell;
  context.imageSmoothingQuality = "high";
  rows.forEach((name, row) => {
    context.textAlign = "right";
    context.fillText(name, left - 6, top + (row + 0.5) * cell);
    columns.forEach((_, column) =>
      context.drawImage(image(row, column), left + column * cell, top + row * cell, cell - 2, cell - 2));
  });
  context.textAlign = "left";
  columns.forEach((name, column) => {
    context.save();
    context.translate(left + (column + 0.5) * cell - 1, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillText(name, 0, 0);
    context.restore();
  });
  markGrid();
}

function markGrid() {
  if (!grid.picture) return;
  const { cell, left, top, width, height } = grid;
  const context = resize($("grid"), width, height);
  context.drawImage(grid.picture, 0, 0, width, height);
  context.strokeStyle = css("--mark");
  context.lineWidth = 2;
  context.strokeRect(left + state.column * cell - 1, top + state.row * cell - 1, cell, cell);
}

const elements = tokens.map(([text, special], i) => {
  const element = document.createElement("span");
  element.className = special ? "token special" : "token";
  element.setAttribute("role", "option");
  element.dir = "auto";
  element.textContent = text;
  element.title = `${i}: ${text}`;
  element.addEventListener("mouseenter", () => select({ query: i, key: null }));
  element.addEventListener("click", () => select({ query: i, kept: state.kept === i ? null : i }));
  return element;
});

// A token inside a sentence, isolated so that the direction of its script does not reorder the rest.
const isolated = i => `\u2068${tokens[i][0]}\u2069`;
const format = value => (Math.abs(value) < 0.0005 && value !== 0 ? value.toExponential(1) : value.toFixed(3));

function drawTokens() {
  const { query, key } = state;
  elements.forEach((element, i) => {
    const value = query === null ? null : weight(query, i);
    const at = value === null ? middle : level(value);
    element.classList.toggle("query", i === query);
    element.setAttribute("aria-selected", i === query);
    element.style.backgroundColor = value === null ? "" : palette[at];
    element.style.color = value !== null && Math.abs(at - middle) > middle / 2 ? "var(--background)" : "";
    if (value === null) delete element.dataset.weight;
    else element.dataset.weight = value;
  });
  const status = $("status");
  if (query === null) {
    status.textContent = `${rows[state.row]}, ${columns[state.column]}`;
  } else if (key !== null) {
    status.textContent = `${isolated(query)} → ${isolated(key)}: ${format(weight(query, key))}`;
  } else {
    const keys = Array.from({ length: n }, (_, i) => [weight(query, i), i]).sort((a, b) => b[0] - a[0]).slice(0, 6);
    status.textContent =
      `${isolated(query)} attends to ` + keys.map(([value, i]) => `${isolated(i)} ${format(value)}`).join(", ");
  }
}

function select(change) {
  const before = { ...state };
  Object.assign(state, change);
  if (state.row !== before.row || state.column !== before.column) {
    $("layer").value = state.row;
    $("head").value = state.column;
    markGrid();
  }
  drawMap();
  drawTokens();
}

function drawAll() {
  drawLegend();
  drawMap();
  drawTokens();
  // After the first paint: the overview of a long text has millions of weights.
  if (!$("overview").hidden) setTimeout(drawGrid);
}

// The query and key under the pointer, if it is in the matrix.
function cellAt(event) {
  const at = x => Math.floor((x - map.margin) / map.cell);
  const [query, key] = [at(event.offsetY), at(event.offsetX)];
  return query >= 0 && query < n && key >= 0 && key < n ? { query, key } : null;
}

const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));

function onKey(event) {
  if (event.target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
  const { row, column, query } = state;
  const step = by => ({ query: query === null ? (by > 0 ? 0 : n - 1) : clamp(query + by, n), key: null });
  const named = name => (columns.includes(name) ? { column: columns.indexOf(name) } : {});
  const changes = {
    ArrowRight: () => step(1), ArrowLeft: () => step(-1),
    ArrowDown: () => ({ row: clamp(row + 1, rows.length) }), ArrowUp: () => ({ row: clamp(row - 1, rows.length) }),
    "]": () => ({ column: clamp(column + 1, columns.length) }), "[": () => ({ column: clamp(column - 1, columns.length) }),
    m: () => named("mean"), r: () => named("rollout"), Escape: () => ({ query: null, key: null, kept: null }),
  };
  if (event.key === "t") toggleTheme();
  else if (changes[event.key]) {
    const change = changes[event.key]();
    // A token that is selected by the keyboard stays when the pointer leaves.
    select("query" in change ? { ...change, kept: change.query } : change);
    if (change.query !== undefined && change.query !== null) elements[change.query].scrollIntoView({ block: "nearest" });
  } else return;
  event.preventDefault();
}

function toggleTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  drawAll();
}

function start() {
  const options = (select, names) => names.forEach((name, i) => select.add(new Option(name, i)));
  options($("layer"), rows);
  options($("head"), columns);
  $("layer").value = state.row;
  document.querySelector("h1").textContent = document.title;
  $("tokens").append(...elements);
  $("overview").hidden = rows.length * columns.length === 1;
  if (isLarge) $("overview").style.order = -1;
  $("layer").addEventListener("change", event => select({ row: +event.target.value }));
  $("head").addEventListener("change", event => select({ column: +event.target.value }));
  $("theme").addEventListener("click", toggleTheme);
  $("tokens").addEventListener("mouseleave", () => select({ query: state.kept, key: null }));
  $("map").addEventListener("mousemove", event => select(cellAt(event) ?? { query: state.kept, key: null }));
  $("map").addEventListener("mouseleave", () => select({ query: state.kept, key: null }));
  $("grid").addEventListener("click", event => {
    const column = Math.floor((event.offsetX - grid.left) / grid.cell), row = Math.floor((event.offsetY - grid.top) / grid.cell);
    if (column >= 0 && column < columns.length && row >= 0 && row < rows.length) select({ row, column });
  });
  document.addEventListener("keydown", onKey);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => { setTheme(dark.matches ? "dark" : "light"); drawAll(); });
  setTheme(dark.matches ? "dark" : "light");
  drawAll();
}

start();
