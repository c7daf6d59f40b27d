// Charts against sliders, drawn from what the library computed for every setting (servinglab.explorer).
const CHART = { height: 220, left: 46, right: 10, top: 18, bottom: 34 };

/** The view at one setting: a leaf that depends on sliders names them, and holds its values along them. */
function atSetting(node, sliders, picked) {
  if (Array.isArray(node)) return node.map((each) => atSetting(each, sliders, picked));
  if (node === null || typeof node !== 'object') return node;
  if (!('$on' in node)) {
    return Object.fromEntries(Object.entries(node).map(([key, each]) => [key, atSetting(each, sliders, picked)]));
  }
  const index = node.$on.reduce((sum, axis) => sum * sliders[axis].texts.length + picked[axis], 0);
  return node.$of[node.$at[index]];
}

function linePath(points, x, y) {
  let path = '';
  let pen = 'M';
  for (const [a, b] of points) {
    if (b === null) {
      pen = 'M';
    } else {
      path += `${pen}${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
      pen = 'L';
    }
  }
  return path;
}

/** 1, 2, 5, 10, … within [low, high], thinned to about `count`. */
function logTicks(low, high, count) {
  const ticks = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k += 1) {
    for (const m of [1, 2, 5]) ticks.push(Number((m * 10 ** k).toPrecision(3)));
  }
  const inside = ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  if (inside.length <= count) return inside;
  return inside.filter((tick) => Number.isInteger(Number(Math.log10(tick).toFixed(9))));
}

class Chart {
  constructor() {
    this.clip = freshId('clip');
    this.root = svg('svg', { class: 'sl-chart', role: 'img' });
    this.legend = html('figcaption', { class: 'sl-legend' });
    this.figure = html('figure', {}, this.root, this.legend);
  }

  draw(chart) {
    const width = Math.max(200, Math.floor(this.figure.clientWidth));
    const { height, left, right, bottom } = CHART;
    const xs = chart.curves.flatMap((curve) => curve.x);
    const ys = chart.curves.flatMap((curve) => curve.y).filter((value) => value !== null);
    const values = [...ys, ...chart.rules.map((rule) => rule.value)];
    const last = Math.max(...xs);
    const first = chart.log_x ? Math.min(...xs) : Math.min(0, ...xs);
    const top = chart.top === null ? Math.max(...values) * (chart.log_y ? 1.3 : 1.08) : chart.top;
    const low = chart.log_y ? Math.min(...values) / 1.3 : 0;
    const along = (value, from, to, log) => (log ? Math.log(value / from) / Math.log(to / from) : (value - from) / (to - from));
    const x = (value) => left + along(value, first, last, chart.log_x) * (width - left - right);
    const y = (value) => height - bottom - along(value, low, top, chart.log_y) * (height - bottom - CHART.top);
    const ticksY = chart.log_y ? logTicks(low, top, 6) : niceTicks(low, top, 5);
    const wide = width < 420 ? 4 : 8;
    const ticksX = chart.log_x ? logTicks(first, last, wide + 2) : niceTicks(first, last, wide);
    const nodes = [
      svg('defs', {}, svg('clipPath', { id: this.clip }, svg('rect', {
        x: left, y: CHART.top - 4, width: width - left - right + 4, height: height - bottom - CHART.top + 8,
      }))),
      ...ticksY.map((v) => svg('line', { class: 'sl-grid', x1: left, x2: width - right, y1: y(v), y2: y(v) })),
      ...ticksY.map((v) => svg('text', { class: 'sl-small', x: left - 5, y: y(v) + 3.5, 'text-anchor': 'end' }, String(v))),
      ...ticksX.map((v) => svg('text', { class: 'sl-small', x: x(v), y: height - bottom + 14, 'text-anchor': 'middle' }, String(v))),
      svg('text', { class: 'sl-small', x: left + (width - left - right) / 2, y: height - 4, 'text-anchor': 'middle' }, nameOf(chart.x_label)),
      svg('text', { class: 'sl-small sl-axis', x: 2, y: 10 }, nameOf(chart.y_label)),
    ];
    if (chart.picked !== null) {
      nodes.push(svg('line', { class: 'sl-picked', x1: x(chart.picked), x2: x(chart.picked), y1: CHART.top, y2: height - bottom }));
    }
    for (const { style, text, value } of chart.rules) {
      if (value > top || value < low) continue;
      nodes.push(svg('line', { class: `sl-rule sl-${style}`, x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      nodes.push(svg('text', {
        class: `sl-label sl-${style}`, x: width - right - 2, y: y(value) - 4, 'text-anchor': 'end',
      }, text));
    }
    for (const { style, x: across, y: up, marks } of chart.curves) {
      const points = across.map((value, index) => [value, up[index]]);
      nodes.push(svg('path', { class: `sl-curve sl-${style}`, d: linePath(points, x, y), 'clip-path': `url(#${this.clip})` }));
      if (!marks) continue;
      for (const [a, b] of points) {
        if (b === null || b > top) continue;
        nodes.push(svg('circle', { class: `sl-mark sl-mark-${style}`, cx: x(a), cy: y(b), r: a === chart.picked ? 5 : 2.5 }));
      }
    }
    this.root.setAttribute('aria-label', nameOf(chart.title));
    this.root.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.root.setAttribute('height', height);
    this.root.replaceChildren(...nodes);
    this.legend.replaceChildren(...[...chart.curves, ...chart.rules].map(({ style, label }) => html('span', {},
      html('i', { class: `sl-key sl-line-${style}`, 'aria-hidden': 'true' }), nameOf(label))));
  }
}

mount('[data-sl="explorer"]', (root, data) => {
  const picked = data.sliders.map((each) => each.start);
  const charts = data.view.charts.map(() => new Chart());
  const readout = html('p', { class: 'sl-readout', role: 'status' });
  const row = html('div', { class: 'sl-charts' }, ...charts.map((chart) => chart.figure));

  function draw() {
    const view = atSetting(data.view, data.sliders, picked);
    view.charts.forEach((chart, index) => charts[index].draw(chart));
    readout.replaceChildren(...view.says.filter((pieces) => pieces.length).map((pieces) => html('span', {}, pieces.map(nameOf).join(''))));
    root.dataset.state = view.state;
  }

  root.querySelector('.sl-fallback').remove();
  root.setAttribute('role', 'group');
  root.setAttribute('aria-label', nameOf(data.title));
  root.append(
    html('div', { class: 'sl-sliders' }, ...data.sliders.map(({ label, texts, start }, axis) => slider(
      nameOf(label), texts, start, texts, (index) => { picked[axis] = index; draw(); }))),
    readout, row);
  draw();
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(row.clientWidth);
    if (now !== width) {
      width = now;
      draw();
    }
  }).observe(root);
});
