// What the components share: words, numbers, elements. All files of this folder run inside one function.
const LANG = (document.documentElement.lang || 'en').toLowerCase().slice(0, 2);
const WORDS = Object.assign({}, STRINGS.en, STRINGS[LANG]);
const REDUCED_MOTION = window.matchMedia('(prefers-reduced-motion: reduce)');
const SVG_TINY = 1e-9;
let idsGiven = 0;

function word(key, values = {}) {
  return WORDS[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** A name or unit given in Python, such as "static": translated if the table knows it. */
function nameOf(name) {
  return WORDS[name] || name;
}

function freshId(prefix) {
  idsGiven += 1;
  return `sl-${prefix}-${idsGiven}-${Math.random().toString(36).slice(2, 8)}`;
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

/** Three significant digits, never in exponent form: 1.75, 18.7, 1234. */
function show(value, digits = 3) {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 6));
}

/** A number typed by a reader, or null: the rule of servinglab.quiz.parse_number. */
function parseNumber(text) {
  const plain = /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(text);
  return plain && Number.isFinite(Number(text)) ? Number(text) : null;
}

function readData(root) {
  return JSON.parse(root.querySelector('script[type="application/json"]').textContent);
}

/** A key typed into a component belongs to it: not to JupyterLab's shortcuts, nor to turning the book's pages. */
function keepKeys(event) {
  if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
}

/** Start every part of a kind that hasn't been started, now or when the page is ready. */
function mount(selector, start) {
  const run = () => {
    for (const root of document.querySelectorAll(selector)) {
      if (root.dataset.slReady) continue;
      root.dataset.slReady = 'yes';
      root.addEventListener('keydown', keepKeys);
      start(root, readData(root));
    }
  };
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', run);
  else run();
}

function translateWords() {
  for (const node of document.querySelectorAll('[data-sl-word]')) node.textContent = word(node.dataset.slWord);
}
if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', translateWords);
else translateWords();

/** A labelled slider over the indices of `values`; `changed(index)` on every move. */
function slider(label, values, index, texts, changed) {
  const id = freshId('slider');
  const output = html('output', { for: id }, texts[index]);
  const input = html('input', {
    id, type: 'range', min: 0, max: values.length - 1, step: 1, value: index, 'aria-valuetext': texts[index],
    oninput: () => {
      const now = Number(input.value);
      output.textContent = texts[now];
      input.setAttribute('aria-valuetext', texts[now]);
      changed(now);
    },
  });
  return html('div', { class: 'sl-slider' }, html('label', { for: id }, label), input, output);
}

/** Round numbers that divide a range into about `count` parts. */
function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const scale = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * scale).find((size) => size >= rough - SVG_TINY);
  const ticks = [];
  for (let k = Math.ceil(low / step - SVG_TINY); k * step <= high + SVG_TINY; k += 1) ticks.push(Number((k * step).toPrecision(6)));
  return ticks;
}
