// Plays what happened in time: buttons, a scrubber, a clock and a speed, for any picture that is a function of the time.
const SECONDS_FOR_ALL = 24; // one run at normal speed

/** Distinct moments, ascending. */
function inOrder(moments) {
  return [...moments].sort((a, b) => a - b).filter((m, k, all) => k === 0 || m - all[k - 1] > 1e-6);
}

function legendKey(kind, label) {
  return html('span', {}, html('i', { class: `sl-key sl-key-${kind}`, 'aria-hidden': 'true' }), word(label));
}

/** A number beside its word, such as "served 3/12". */
function counter(key, text) {
  return html('span', {}, `${word(key)} `, html('b', {}, text));
}

/**
 * Put controls, parts and a legend into `root`, and play. `layOut(width)` draws anew; `show(time)` returns sentences.
 * Returns `redraw(events)`, for when what is shown has changed.
 */
function player(root, { label, duration, events, at, parts, legend, layOut, show, above = [] }) {
  let time = at;
  let moments = events;
  let playing = null; // a timer or an animation frame

  const play = html('button', { type: 'button', class: 'sl-play' });
  const scrub = html('input', {
    type: 'range', min: 0, max: duration, step: duration / 400, value: at, 'aria-label': word('time'),
  });
  const clock = html('output', { class: 'sl-clock' });
  const places = duration < 1 ? 3 : duration < 5 ? 2 : 1;
  const speedId = freshId('speed');
  const speed = html('select', { id: speedId },
    ...[0.25, 0.5, 1, 2, 4].map((factor) => html('option', { value: factor, selected: factor === 1 }, `${factor}×`)));
  const says = html('p', { class: 'sl-says sl-visually-hidden', role: 'status' });

  function showNow(speak) {
    const sentences = show(time);
    const text = `${time.toFixed(places)} s`;
    scrub.value = time;
    scrub.setAttribute('aria-valuetext', text);
    clock.textContent = text;
    root.dataset.time = time.toFixed(6);
    if (speak) says.textContent = `${text}. ${sentences.join(' ')}`;
  }

  function stop() {
    if (playing !== null) {
      cancelAnimationFrame(playing);
      clearTimeout(playing);
    }
    playing = null;
    play.replaceChildren(html('span', { 'aria-hidden': 'true' }, '▶ '), word('play'));
    root.classList.remove('sl-playing');
  }

  function seek(moment, speak = true) {
    time = Math.min(duration, Math.max(0, moment));
    showNow(speak);
  }

  const nextEvent = () => moments.find((moment) => moment > time + 1e-6) ?? duration;
  const eventBefore = () => [...moments].reverse().find((moment) => moment < time - 1e-6) ?? 0;

  function start() {
    if (time >= duration - SVG_TINY) seek(0, false);
    play.replaceChildren(html('span', { 'aria-hidden': 'true' }, '❚❚ '), word('pause'));
    root.classList.add('sl-playing');
    const tick = (moment) => {
      seek(moment, false);
      if (time >= duration - SVG_TINY) {
        stop();
        showNow(true);
        return false;
      }
      return true;
    };
    if (REDUCED_MOTION.matches) { // no motion: from event to event
      const jump = () => {
        if (tick(nextEvent())) playing = setTimeout(jump, 800 / Number(speed.value));
      };
      playing = setTimeout(jump, 0);
      return;
    }
    let before = null;
    const frame = (now) => {
      const passed = before === null ? 0 : Math.min(0.1, (now - before) / 1000);
      before = now;
      if (tick(time + (passed * Number(speed.value) * duration) / SECONDS_FOR_ALL)) playing = requestAnimationFrame(frame);
    };
    playing = requestAnimationFrame(frame);
  }

  const button = (key, sign, action) => html('button', {
    type: 'button', class: 'sl-icon', 'aria-label': word(key), title: word(key), onclick: () => { stop(); seek(action()); },
  }, html('span', { 'aria-hidden': 'true' }, sign));
  play.addEventListener('click', () => {
    if (playing === null) start();
    else { stop(); showNow(true); }
  });
  scrub.addEventListener('input', () => { stop(); seek(Number(scrub.value), false); });
  scrub.addEventListener('change', () => showNow(true));

  root.setAttribute('role', 'group');
  root.setAttribute('aria-label', label);
  root.prepend(
    ...above,
    html('div', { class: 'sl-row sl-controls' }, play,
      button('restart', '|◂', () => 0), button('back', '◂', eventBefore), button('step', '▸', nextEvent),
      scrub, clock, html('label', { for: speedId }, word('speed')), speed),
    ...parts,
    html('p', { class: 'sl-legend' }, ...legend),
    says);

  let width = 0;
  const draw = () => {
    root.classList.add('sl-still');
    layOut(width);
    showNow(false);
    requestAnimationFrame(() => root.classList.remove('sl-still'));
  };
  const measure = () => {
    const now = Math.floor(root.querySelector('.sl-lane').clientWidth);
    if (now < 1 || now === width) return;
    width = now;
    draw();
  };
  stop();
  measure();
  new ResizeObserver(measure).observe(root);
  return (changed) => {
    moments = changed;
    if (width) draw();
  };
}
