// A guess kept in the reader's browser, and shown again beside the answer.
const guessesOnPage = new Map(); // where the browser refuses storage

function readGuess(key) {
  try {
    const kept = localStorage.getItem(`servinglab.guess.${key}`);
    if (kept !== null) return kept;
  } catch (refused) { /* storage is off: fall through to the page's own memory */ }
  return guessesOnPage.get(key) ?? null;
}

/** Whether the guess will outlive the page. */
function writeGuess(key, text) {
  guessesOnPage.set(key, text);
  let kept = true;
  try {
    localStorage.setItem(`servinglab.guess.${key}`, text);
  } catch (refused) {
    kept = false;
  }
  document.dispatchEvent(new CustomEvent('servinglab-guess', { detail: key }));
  return kept;
}

function withUnit(value, unit) {
  return unit ? `${value} ${nameOf(unit)}` : String(value);
}

mount('[data-sl="guess"]', (root, { key, unit }) => {
  const id = freshId('guess');
  const earlier = readGuess(key);
  const input = html('input', {
    id, type: 'text', inputmode: 'decimal', autocomplete: 'off', size: 8, value: earlier, 'aria-describedby': `${id}-says`,
  });
  const says = html('p', { id: `${id}-says`, class: 'sl-says', role: 'status' },
    earlier === null ? '' : word('guess_saved', { value: withUnit(earlier, unit) }));
  const form = html('form', {
    class: 'sl-row',
    id: `guess-${key}`,
    onsubmit: (event) => {
      event.preventDefault();
      const number = parseNumber(input.value);
      input.setAttribute('aria-invalid', number === null);
      if (number === null) {
        says.textContent = word('number_please');
        return;
      }
      const text = input.value.trim();
      const kept = writeGuess(key, text);
      says.textContent = word(kept ? 'guess_saved' : 'guess_not_kept', { value: withUnit(text, unit) });
    },
  },
  html('label', { for: id }, word('guess_label')), input, html('span', { class: 'sl-unit' }, nameOf(unit)),
  html('button', { type: 'submit' }, word('guess_save')));
  root.querySelector('.sl-fallback').remove();
  root.append(form, says);
});

mount('[data-sl="recall"]', (root, { key, unit, answer, shown }) => {
  const says = html('p', { class: 'sl-says', role: 'status' });
  root.append(says);
  const tell = () => {
    const text = readGuess(key);
    const guessed = text === null ? null : parseNumber(text);
    root.classList.toggle('sl-has-guess', guessed !== null);
    if (guessed === null) {
      const ask = document.getElementById(`guess-${key}`)
        ? html('a', { href: `#guess-${key}` }, word('guess_go')) : null;
      says.replaceChildren(word('guess_none'), ' ', ...(ask ? [ask] : []));
      return;
    }
    const difference = guessed - Number(shown);
    const verdict = difference === 0 ? 'guess_same' : difference < 0 ? 'guess_below' : 'guess_above';
    says.replaceChildren(
      html('strong', {}, word('guessed', { value: withUnit(text, unit) })), ' ',
      word(verdict, { difference: withUnit(String(Number(show(Math.abs(difference)))), unit), answer: withUnit(shown, unit) }));
  };
  document.addEventListener('servinglab-guess', (event) => {
    if (event.detail === key) tell();
  });
  tell();
});
