// The same orders under several schedulers, side by side. Every picture is a function of the time shown, so that
// playing, stepping and scrubbing can't disagree.
const TICKET = { width: 17, gap: 4, block: 6, label: 12 };

/** Where an order is at a time: away, line, pot or served, with the steps it still needs. */
function orderAt(order, time) {
  const left = order.ends.filter((end) => end > time + SVG_TINY).length;
  const past = (moment) => moment <= time + SVG_TINY;
  const place = !past(order.arrival) ? 'away' : !past(order.scheduled) ? 'line' : !past(order.leaves) ? 'pot' : 'served';
  return { place, left, answered: past(order.finish) };
}

function laneAt(lane, time) {
  const orders = lane.orders.map((order) => orderAt(order, time));
  const answered = lane.orders.filter((_, index) => orders[index].answered);
  const until = Math.min(time, lane.last);
  return {
    orders,
    waiting: orders.filter(({ place }) => place === 'line').length,
    cooking: orders.filter(({ place }) => place === 'pot').length,
    served: answered.length,
    throughput: until > 0 ? answered.length / until : 0,
    latency: answered.reduce((sum, order) => sum + order.finish - order.arrival, 0) / answered.length,
  };
}

class Lane {
  constructor(lane, data) {
    this.lane = lane;
    this.data = data;
    this.name = nameOf(lane.name);
    this.counters = html('span', { class: 'sl-counters' });
    this.stage = svg('svg', { class: 'sl-stage', role: 'img' });
    this.timeline = svg('svg', { class: 'sl-timeline', 'aria-hidden': 'true' });
    this.root = html('section', { class: 'sl-lane', 'aria-label': this.name },
      html('div', { class: 'sl-lane-head' }, html('strong', {}, this.name), this.counters), this.stage, this.timeline);
  }

  layOut(width) {
    const { lane, data } = this;
    const pitch = TICKET.width + TICKET.gap;
    const tallest = Math.max(...lane.orders.map((order) => order.ends.length));
    const top = 18;
    const ticketHeight = TICKET.label + tallest * TICKET.block + 4;
    const potWidth = lane.seats * pitch + TICKET.gap + 8;
    this.height = top + ticketHeight + 22;
    this.potX = Math.max(64, (width - potWidth) * 0.5);
    this.floor = top + ticketHeight;
    this.potWidth = potWidth;
    this.inLine = Math.max(1, Math.floor((this.potX - 26) / pitch)); // the rest is a number
    this.servedX = this.potX + potWidth + 12;
    this.servedColumns = Math.max(1, Math.floor((width - this.servedX) / pitch));
    this.pitch = pitch;

    const { potX, floor, height } = this;
    this.stage.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.stage.setAttribute('height', height);
    const seats = Array.from({ length: lane.seats }, (_, seat) => svg('rect', {
      class: 'sl-seat', x: this.seatX(seat), y: floor - ticketHeight + 2, width: TICKET.width, height: ticketHeight - 2, rx: 3,
    }));
    this.fire = svg('rect', { class: 'sl-fire', x: potX + 4, y: floor + 11, width: 0, height: 4, rx: 2 });
    this.more = svg('text', { class: 'sl-small', x: 2, y: floor - 2 });
    this.tickets = lane.orders.map((order, index) => this.ticket(order, index));
    this.stage.replaceChildren(
      svg('text', { class: 'sl-zone', x: potX - 6, y: 11, 'text-anchor': 'end' }, word('line')),
      svg('text', { class: 'sl-zone', x: potX + potWidth / 2, y: 11, 'text-anchor': 'middle' }, word('pot')),
      svg('text', { class: 'sl-zone', x: this.servedX, y: 11 }, word('served')),
      svg('path', {
        class: 'sl-pot',
        d: `M ${potX - 4} ${floor - ticketHeight + 8} H ${potX} V ${floor + 2} q 0 6 6 6 H ${potX + potWidth - 6} q 6 0 6 -6`
          + ` V ${floor - ticketHeight + 8} h 4`,
      }),
      svg('rect', { class: 'sl-hob', x: potX + 4, y: floor + 11, width: potWidth - 8, height: 4, rx: 2 }),
      this.fire, ...seats, this.more, ...this.tickets.map(({ group }) => group));

    this.layOutTimeline(width);
  }

  seatX(seat) {
    return this.potX + 4 + TICKET.gap / 2 + 2 + seat * this.pitch;
  }

  ticket(order, index) {
    const steps = order.ends.length;
    const blocks = order.ends.map((_, step) => svg('rect', {
      x: 3, y: -(steps - step) * TICKET.block - 1, width: TICKET.width - 6, height: TICKET.block - 1.5, rx: 1,
    }));
    const height = TICKET.label + steps * TICKET.block + 2;
    const frame = svg('rect', { class: 'sl-frame', x: 0, y: -height, width: TICKET.width, height, rx: 3 });
    const label = svg('text', { x: TICKET.width / 2, y: -height + 10, 'text-anchor': 'middle' }, String(index + 1));
    const chip = svg('rect', { class: 'sl-chip', x: 0, y: -14, width: TICKET.width, height: 13, rx: 3 });
    const chipLabel = svg('text', { class: 'sl-chip', x: TICKET.width / 2, y: -4, 'text-anchor': 'middle' }, String(index + 1));
    const group = svg('g', { class: 'sl-ticket' }, frame, ...blocks, label, chip, chipLabel);
    return { group, blocks };
  }

  layOutTimeline(width) {
    const { lane, data } = this;
    const row = 11;
    const height = lane.seats * row + 16;
    this.timeX = (time) => 1 + (time / data.duration) * (width - 2);
    const x = this.timeX;
    this.timeline.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.timeline.setAttribute('height', height);
    const bars = [];
    const labels = [];
    for (const [index, order] of lane.orders.entries()) {
      const y = order.seat * row;
      const done = order.ends[order.ends.length - 1];
      bars.push(svg('rect', {
        class: 'sl-cooks', x: x(order.scheduled), y: y + 1, width: Math.max(1, x(done) - x(order.scheduled) - 1), height: row - 2, rx: 2,
      }));
      if (order.leaves > done + SVG_TINY) {
        bars.push(svg('rect', {
          class: 'sl-stays', x: x(done), y: y + 1.5, width: Math.max(1, x(order.leaves) - x(done) - 1.5), height: row - 3, rx: 2,
        }));
      }
      if (x(done) - x(order.scheduled) > 14) {
        labels.push(svg('text', { class: 'sl-bar-label', x: x(order.scheduled) + 3, y: y + row - 2.5 }, String(index + 1)));
      }
    }
    const ticks = niceTicks(0, data.duration, width < 420 ? 4 : 8).flatMap((time) => [
      svg('line', { class: 'sl-grid', x1: x(time), x2: x(time), y1: 0, y2: lane.seats * row }),
      svg('text', {
        class: 'sl-small', x: x(time), y: height - 4,
        'text-anchor': time === 0 ? 'start' : x(time) > width - 14 ? 'end' : 'middle',
      }, `${time}${time === 0 ? ' s' : ''}`),
    ]);
    this.future = svg('rect', { class: 'sl-future', y: 0, height: lane.seats * row });
    this.cursor = svg('line', { class: 'sl-cursor', y1: 0, y2: lane.seats * row });
    this.timeline.replaceChildren(...ticks.filter((t) => t.tagName === 'line'), ...bars, this.future, ...labels,
      ...ticks.filter((t) => t.tagName === 'text'), this.cursor);
    this.fullWidth = width;
  }

  show(time) {
    const { lane } = this;
    const now = laneAt(lane, time);
    const line = lane.orders.map((order, index) => index).filter((index) => now.orders[index].place === 'line');
    const served = lane.orders.map((order, index) => index).filter((index) => now.orders[index].place === 'served')
      .sort((a, b) => lane.orders[a].leaves - lane.orders[b].leaves || a - b);
    for (const [index, { group, blocks }] of this.tickets.entries()) {
      const { place, left } = now.orders[index];
      let x = -TICKET.width - 4;
      let y = this.floor;
      let seen = true;
      if (place === 'line') {
        const position = line.indexOf(index);
        seen = position < this.inLine;
        x = this.potX - 10 - (Math.min(position, this.inLine) + 1) * this.pitch + TICKET.gap;
      } else if (place === 'pot') {
        x = this.seatX(lane.orders[index].seat);
      } else if (place === 'served') {
        const position = served.indexOf(index);
        x = this.servedX + (position % this.servedColumns) * this.pitch;
        y = 32 + Math.floor(position / this.servedColumns) * 17;
      }
      group.style.transform = `translate(${x}px, ${y}px)`;
      group.style.opacity = place === 'away' || !seen ? 0 : 1;
      const state = place === 'pot' && left === 0 ? 'done' : place;
      group.setAttribute('data-place', state);
      for (const [step, block] of blocks.entries()) {
        block.setAttribute('class', step < blocks.length - left ? 'sl-block sl-block-done' : 'sl-block');
      }
    }
    this.more.textContent = line.length > this.inLine ? `+${line.length - this.inLine}` : '';
    const step = lane.steps.find(([start, end]) => start <= time + SVG_TINY && time + SVG_TINY < end);
    this.fire.setAttribute('width', step ? ((time - step[0]) / (step[1] - step[0])) * (this.potWidth - 8) : 0);
    this.cursor.setAttribute('x1', this.timeX(time));
    this.cursor.setAttribute('x2', this.timeX(time));
    this.future.setAttribute('x', this.timeX(time));
    this.future.setAttribute('width', Math.max(0, this.fullWidth - this.timeX(time)));
    this.counters.replaceChildren(
      counter('served', `${now.served}/${lane.orders.length}`),
      counter('throughput', `${now.served ? now.throughput.toFixed(2) : '–'} /s`),
      counter('mean_latency', `${now.served ? now.latency.toFixed(2) : '–'} s`));
    this.stage.setAttribute('aria-label', word('lane_label', { name: this.name, time: time.toFixed(1) }));
    return word('kitchen_says', { name: this.name, waiting: now.waiting, cooking: now.cooking, served: now.served });
  }
}

mount('[data-sl="kitchen"]', (root, data) => {
  const lanes = data.lanes.map((lane) => new Lane(lane, data));
  const moments = [0];
  for (const lane of data.lanes) {
    for (const order of lane.orders) moments.push(order.arrival, order.finish, ...order.ends);
    for (const [start] of lane.steps) moments.push(start);
  }
  player(root, {
    label: word('kitchen_label'),
    duration: data.duration,
    events: inOrder(moments),
    at: 0,
    parts: lanes.map((lane) => lane.root),
    legend: [legendKey('left', 'step_left'), legendKey('done', 'step_done'), legendKey('stays', 'done_waits'),
      legendKey('seat', 'empty_seat')],
    layOut: (width) => lanes.forEach((lane) => lane.layOut(width)),
    show: (time) => lanes.map((lane) => lane.show(time)),
  });
});
