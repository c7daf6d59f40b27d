// A run step by step: a row for each request, a column for each step, below it the blocks of KV cache in use.
const ROW = { height: 17, label: 30, blocks: 46, axis: 18 };

/** Stretches of one request: what it did from when to when, and prompt tokens where it read some. */
function stretches(row, steps, duration) {
  const found = [];
  let reads = 0;
  let idleFrom = row.arrival;
  const work = /[pdsh]/;
  for (const [at, state] of [...row.states].entries()) {
    const [start, end] = steps[at];
    if (state === 'x') {
      found.push({ kind: 'preempted', from: start, to: end });
      idleFrom = start;
    } else if (work.test(state)) {
      if (idleFrom !== null && start > idleFrom + SVG_TINY) found.push({ kind: 'waits', from: idleFrom, to: start });
      idleFrom = null;
      if (state === 'p') {
        found.push({ kind: 'prefill', from: start, to: end, tokens: row.prefill[reads] });
        reads += 1;
      } else {
        const kind = { d: 'decode', s: 'pauses', h: 'stays' }[state];
        const before = found[found.length - 1];
        if (kind !== 'decode' && before && before.kind === kind && before.to > start - SVG_TINY) before.to = end;
        else found.push({ kind, from: start, to: end });
      }
    }
  }
  const until = row.gone ?? duration; // a rejected request is gone at once
  if (idleFrom !== null && until > idleFrom) found.push({ kind: 'waits', from: idleFrom, to: until });
  return found;
}

class StepLane {
  constructor(duration) {
    this.duration = duration;
    this.heading = html('strong');
    this.counters = html('span', { class: 'sl-counters' });
    this.picture = svg('svg', { class: 'sl-steps', role: 'img' });
    this.mark = html('span', { class: 'sl-mark' });
    this.root = html('section', { class: 'sl-lane' },
      html('div', { class: 'sl-lane-head' }, this.heading, this.counters, this.mark), this.picture);
  }

  choose(lane) {
    this.lane = lane;
    this.name = nameOf(lane.name);
    this.heading.textContent = this.name;
    this.mark.textContent = lane.unpriced ? word('unpriced') : '';
    this.rows = lane.rows.map((row) => ({ ...row, stretches: stretches(row, lane.steps, lane.last) }));
  }

  layOut(width) {
    const { lane, duration, rows } = this;
    const left = Math.max(18, 8 + 7 * Math.max(...rows.map((row) => row.name.length)));
    const x = (time) => left + (time / duration) * (width - left - 2);
    const bottom = rows.length * ROW.height;
    const blocksTop = bottom + 16;
    const floor = lane.blocks ? blocksTop + ROW.blocks : bottom;
    const height = floor + ROW.axis;
    const drawn = [];
    for (const [k, row] of rows.entries()) {
      const y = k * ROW.height;
      drawn.push(svg('text', { class: 'sl-small', x: left - 5, y: y + 12.5, 'text-anchor': 'end' }, row.name));
      for (const stretch of row.stretches) drawn.push(...this.bar(stretch, x, y));
      drawn.push(svg('line', { class: 'sl-arrives', x1: x(row.arrival), x2: x(row.arrival), y1: y + 2, y2: y + 15 }));
    }
    if (lane.blocks) {
      const level = (blocks) => floor - (blocks / lane.pool) * ROW.blocks;
      const area = lane.steps.map(([start, end], at) => `V ${level(lane.blocks[at])} H ${x(end)}`
        + (at + 1 < lane.steps.length && lane.steps[at + 1][0] > end + SVG_TINY ? ` V ${floor} H ${x(lane.steps[at + 1][0])}` : ''));
      drawn.push(svg('path', { class: 'sl-blocks', d: `M ${x(lane.steps[0][0])} ${floor} ${area.join(' ')} V ${floor} Z` }),
        svg('line', { class: 'sl-pool', x1: left, x2: width - 2, y1: blocksTop, y2: blocksTop }));
    }
    const title = lane.blocks ? svg('text', { class: 'sl-small', x: left, y: blocksTop - 3 },
      `${word('kv_blocks')}: ${word('pool')} ${lane.pool}`) : '';
    const ticks = niceTicks(0, duration, width < 420 ? 4 : 8);
    const grid = ticks.map((time) => svg('line', { class: 'sl-grid', x1: x(time), x2: x(time), y1: 0, y2: floor }));
    const numbers = ticks.map((time) => svg('text', {
      class: 'sl-small', x: x(time), y: height - 4, 'text-anchor': x(time) > width - 14 ? 'end' : 'middle',
    }, `${time}${time === 0 ? ' s' : ''}`));
    this.future = svg('rect', { class: 'sl-future', y: 0, height: floor });
    this.now = svg('rect', { class: 'sl-now', y: 0, height: floor });
    this.cursor = svg('line', { class: 'sl-cursor', y1: 0, y2: floor });
    this.picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.picture.setAttribute('height', height);
    this.picture.replaceChildren(...grid, this.now, ...drawn, this.future, title, ...numbers, this.cursor);
    this.x = x;
    this.width = width;
  }

  bar({ kind, from, to, tokens }, x, y) {
    const wide = x(to) - x(from);
    const gap = wide > 4 ? 1 : 0;
    const box = (inset) => ({
      x: x(from), y: y + inset, width: Math.max(0.8, wide - gap), height: ROW.height - 2 * inset, rx: gap,
    });
    if (kind === 'preempted') {
      const [a, b] = [x(from) - 4, y + ROW.height / 2 - 4];
      return [svg('path', { class: 'sl-preempted', d: `M ${a} ${b} l 8 8 m 0 -8 l -8 8` })];
    }
    const inset = { waits: 7, pauses: 6, prefill: 1, decode: 4, stays: 4 }[kind];
    const shape = svg('rect', { class: `sl-${kind}`, ...box(inset) });
    if (kind !== 'prefill' || wide < 7 * String(tokens).length + 2) return [shape];
    const label = svg('text', { class: 'sl-tokens', x: x(from) + wide / 2 - gap / 2, y: y + 12.5, 'text-anchor': 'middle' }, tokens);
    return [shape, label];
  }

  show(time) {
    const { lane, rows, x } = this;
    const at = lane.steps.findIndex(([start, end]) => start <= time + SVG_TINY && time + SVG_TINY < end);
    const count = (states) => (at < 0 ? 0 : rows.filter((row) => states.includes(row.states[at])).length);
    const reads = at < 0 ? 0 : rows.reduce((sum, row) => sum + (row.states[at] === 'p'
      ? row.prefill[[...row.states.slice(0, at)].filter((s) => s === 'p').length] : 0), 0);
    const waiting = at >= 0 ? count('wx')
      : rows.filter((row) => row.arrival <= time + SVG_TINY && row.gone !== row.arrival && !row.states.split('').some((s, k) => 'pd'.includes(s) && lane.steps[k][0] <= time)).length;
    const values = {
      step: at < 0 ? '–' : at + 1, waiting, reads, decode: count('d'), blocks: at < 0 || !lane.blocks ? 0 : lane.blocks[at],
    };
    this.counters.replaceChildren(
      counter('step_number', `${values.step}/${lane.steps.length}`), counter('waiting', values.waiting),
      counter('prefill', values.reads), counter('decode', values.decode),
      lane.blocks ? counter('kv_blocks', `${values.blocks}/${lane.pool}`) : '');
    this.cursor.setAttribute('x1', x(time));
    this.cursor.setAttribute('x2', x(time));
    this.future.setAttribute('x', x(time));
    this.future.setAttribute('width', Math.max(0, this.width - x(time)));
    this.now.setAttribute('x', at < 0 ? 0 : x(lane.steps[at][0]));
    this.now.setAttribute('width', at < 0 ? 0 : x(lane.steps[at][1]) - x(lane.steps[at][0]));
    this.picture.setAttribute('aria-label', word('steps_lane_label', { name: this.name, time: time.toFixed(3) }).trim());
    return word(lane.blocks ? 'steps_say_blocks' : 'steps_say', { name: this.name, pool: lane.pool, ...values }).trim();
  }

  moments() {
    return [...this.lane.steps.flat(), ...this.rows.map((row) => row.arrival)];
  }
}

mount('[data-sl="steps"]', (root, data) => {
  const chosen = data.sliders.map(({ start }) => start);
  const shown = data.sliders.length ? [new StepLane(data.duration)] : data.lanes.map(() => new StepLane(data.duration));
  const index = () => data.sliders.reduce((sum, { stops }, k) => sum * stops.length + chosen[k], 0);
  const choose = () => shown.forEach((lane, k) => lane.choose(data.lanes[data.sliders.length ? index() : k]));
  const events = () => inOrder([0, data.duration, ...shown.flatMap((lane) => lane.moments())]);
  choose();
  let redraw = () => {};
  const controls = data.sliders.map(({ label, stops }, k) => slider(nameOf(label), stops, chosen[k], stops.map(nameOf), (now) => {
    chosen[k] = now;
    choose();
    redraw(events());
  }));
  const kinds = new Set(data.lanes.flatMap((lane) => lane.rows.flatMap((row) => [...row.states])));
  const legend = [['w', 'waits', 'waits'], ['p', 'prefill', 'prefill'], ['d', 'decode', 'decode'], ['s', 'pauses', 'pauses'],
    ['h', 'stays', 'done_waits'], ['x', 'preempted', 'preempted']].filter(([state]) => state === 'w' || kinds.has(state));
  redraw = player(root, {
    label: word('steps_label'),
    duration: data.duration,
    events: events(),
    at: data.duration, // the whole picture first; Play starts it anew
    above: controls.length ? [html('div', { class: 'sl-sliders' }, ...controls)] : [],
    parts: shown.map((lane) => lane.root),
    legend: legend.map(([, kind, label]) => legendKey(kind, label)),
    layOut: (width) => shown.forEach((lane) => lane.layOut(width)),
    show: (time) => shown.map((lane) => lane.show(time)),
  });
});
