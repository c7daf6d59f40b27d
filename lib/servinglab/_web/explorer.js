// Throughput and P99 against batch size, drawn from what the library computed for every setting of the sliders.
const CHART = { height: 220, left: 40, right: 10, top: 14, bottom: 34 };

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

class Chart {
  constructor(label, yTitle) {
    this.yTitle = yTitle;
    this.clip = freshId('clip');
    this.root = svg('svg', { class: 'sl-chart', role: 'img', 'aria-label': label });
  }

  /** curves: [{kind, label, points, marks}], rules: [{kind, label, value}] across, at: the batch size picked. */
  draw(width, batches, top, curves, rules, at) {
    const { height, left, right, bottom } = CHART;
    const last = batches[batches.length - 1];
    const x = (batch) => left + ((batch - 0) / last) * (width - left - right);
    const y = (value) => height - bottom - (value / top) * (height - bottom - CHART.top);
    const ticksY = niceTicks(0, top, 5);
    const ticksX = niceTicks(0, last, width < 420 ? 4 : 8);
    const nodes = [
      svg('defs', {}, svg('clipPath', { id: this.clip }, svg('rect', {
        x: left, y: CHART.top - 4, width: width - left - right + 4, height: height - bottom - CHART.top + 8,
      }))),
      ...ticksY.map((v) => svg('line', { class: 'sl-grid', x1: left, x2: width - right, y1: y(v), y2: y(v) })),
      ...ticksY.map((v) => svg('text', { class: 'sl-small', x: left - 5, y: y(v) + 3.5, 'text-anchor': 'end' }, String(v))),
      ...ticksX.map((v) => svg('text', { class: 'sl-small', x: x(v), y: height - bottom + 14, 'text-anchor': 'middle' }, String(v))),
      svg('text', { class: 'sl-small', x: left + (width - left - right) / 2, y: height - 4, 'text-anchor': 'middle' }, word('batch')),
      svg('text', { class: 'sl-small sl-axis', x: 2, y: 9 }, this.yTitle),
      svg('line', { class: 'sl-picked', x1: x(at), x2: x(at), y1: CHART.top, y2: height - bottom }),
    ];
    for (const { kind, label, value } of rules) {
      if (value > top) continue;
      nodes.push(svg('line', { class: `sl-rule sl-${kind}`, x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      nodes.push(svg('text', {
        class: `sl-label sl-${kind}`, x: width - right - 2, y: y(value) - 4, 'text-anchor': 'end',
      }, label));
    }
    for (const { kind, points, marks } of curves) {
      nodes.push(svg('path', { class: `sl-curve sl-${kind}`, d: linePath(points, x, y), 'clip-path': `url(#${this.clip})` }));
      if (!marks) continue;
      for (const [batch, value] of points) {
        if (value === null || value > top) continue;
        nodes.push(svg('circle', { class: `sl-mark sl-${kind}`, cx: x(batch), cy: y(value), r: batch === at ? 5 : 2.5 }));
      }
    }
    this.root.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.root.setAttribute('height', height);
    this.root.replaceChildren(...nodes);
  }
}

mount('[data-sl="explorer"]', (root, data) => {
  const picked = { ...data.start };
  const throughput = new Chart(word('throughput_chart'), `${word('throughput')} /s`);
  const latency = new Chart(word('p99_chart'), 'P99 s');
  const readout = html('p', { class: 'sl-readout', role: 'status' });
  const charts = html('div', { class: 'sl-charts' },
    html('figure', {}, throughput.root,
      html('figcaption', { class: 'sl-legend' }, swatch('capacity', 'capacity'), swatch('offered', 'offered'), swatch('limit', 'limit'))),
    html('figure', {}, latency.root,
      html('figcaption', { class: 'sl-legend' }, swatch('p99', 'p99_exact'), swatch('formula', 'p99_formula'), swatch('slo', 'slo'))));

  function draw() {
    const rate = data.rates_rps[picked.rate];
    const batch = data.batch_sizes[picked.batch];
    const slo = data.slo_s[picked.slo];
    const capacity = data.capacity_rps[picked.fixed][picked.slope];
    const p99 = data.p99_s[picked.rate][picked.fixed][picked.slope];
    const formula = data.formula_s[picked.rate][picked.fixed][picked.slope];
    const pair = (values) => data.batch_sizes.map((size, index) => [size, values[index]]);
    const limit = 1 / data.per_request_s[picked.slope];
    const found = p99.filter((value) => value !== null);
    const width = Math.max(200, Math.floor(throughput.root.parentElement.clientWidth));
    const most = Math.max(...capacity, rate);
    const topRate = (limit < 2.5 * most ? Math.max(most, limit) : most) * 1.1;
    const topP99 = Math.max(slo * 1.3, found.length ? Math.min(Math.max(...found), 3.5 * Math.min(...found)) * 1.1 : 0);
    throughput.draw(width, data.batch_sizes, topRate,
      [{ kind: 'capacity', points: pair(capacity), marks: true }],
      [{ kind: 'offered', label: `λ ${rate}`, value: rate }, { kind: 'limit', label: `1/r ${show(limit)}`, value: limit }], batch);
    latency.draw(width, data.batch_sizes, topP99,
      [{ kind: 'formula', points: pair(formula) }, { kind: 'p99', points: pair(p99), marks: true }],
      [{ kind: 'slo', label: `${slo} s`, value: slo }], batch);

    const now = p99[picked.batch];
    const best = found.length ? data.batch_sizes[p99.indexOf(Math.min(...found))] : null;
    const parts = [
      `B = ${batch}`, `Q(B) = ${show(capacity[picked.batch])} /s`, `ρ = ${(rate / capacity[picked.batch]).toFixed(2)}`,
      now === null ? word('unstable') : `P99 = ${show(now)} s: ${word(now <= slo ? 'meets' : 'misses')}`,
    ];
    if (best !== null) parts.push(`${word('best')}: B = ${best}`);
    readout.replaceChildren(...parts.map((text) => html('span', {}, text)));
    root.dataset.state = now === null ? 'unstable' : now <= slo ? 'meets' : 'misses';
  }

  const control = (key, name, values, unit) => slider(
    word(name), values, picked[key], values.map((value) => `${value}${unit}`),
    (index) => { picked[key] = index; draw(); });
  root.querySelector('.sl-fallback').remove();
  root.setAttribute('role', 'group');
  root.setAttribute('aria-label', word('explorer_label'));
  root.append(
    html('div', { class: 'sl-sliders' },
      control('rate', 'rate', data.rates_rps, ' /s'),
      control('fixed', 'fixed', data.fixed_s, ' s'),
      control('slope', 'slope', data.per_request_s, ' s'),
      control('batch', 'batch', data.batch_sizes, ''),
      control('slo', 'slo', data.slo_s, ' s')),
    readout, charts);
  draw();
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(charts.clientWidth);
    if (now !== width) {
      width = now;
      draw();
    }
  }).observe(root);
});

function swatch(kind, label) {
  return html('span', {}, html('i', { class: `sl-key sl-line-${kind}`, 'aria-hidden': 'true' }), word(label));
}
