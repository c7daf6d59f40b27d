// Questions with fresh numbers, graded here by the rule of servinglab.quiz.Question.grade.
const SLACK = 1e-9;

function near(number, value, tolerance) {
  return Math.abs(number - value) <= tolerance * Math.abs(value) + SLACK;
}

/** {right, hint} for a number typed or a choice picked. */
function grade(question, variant, reply) {
  if (question.choices.length) {
    return reply === variant.answer ? { right: true, hint: null } : { right: false, hint: reply };
  }
  const number = parseNumber(reply);
  if (near(number, variant.answer, question.tolerance)) return { right: true, hint: null };
  const found = Object.entries(variant.wrong).find(([, value]) => near(number, value, question.tolerance));
  return { right: false, hint: found ? found[0] : null };
}

/** Any index but the present one. */
function another(count, now) {
  if (count < 2) return 0;
  const picked = Math.floor(Math.random() * (now === null ? count : count - 1));
  return now !== null && picked >= now ? picked + 1 : picked;
}

function startQuestion(root, question, number, count, scored) {
  const id = freshId('question');
  let variant = null;
  let right = false;

  const title = html('p', { class: 'sl-question-title', id: `${id}-title` }, word('question_of', { number, count }));
  root.prepend(title);
  root.setAttribute('role', 'group');
  root.setAttribute('aria-labelledby', `${id}-title`);

  const verdict = html('p', { class: 'sl-verdict' });
  const says = html('div', { class: 'sl-says', role: 'status', id: `${id}-says` }, verdict);
  const hints = new Map();
  for (const hint of root.querySelectorAll('.sl-hint')) {
    hints.set(hint.dataset.key, hint);
    says.append(hint);
  }

  const number_field = html('input', {
    type: 'text', inputmode: 'decimal', autocomplete: 'off', size: 8, id: `${id}-answer`, 'aria-describedby': `${id}-says`,
  });
  const choices = [...root.querySelectorAll('.sl-choice')].map((choice) => {
    const radio = html('input', { type: 'radio', name: id, value: choice.dataset.key });
    const label = html('label', { class: 'sl-choice-label' }, radio, html('div', {}, ...choice.childNodes));
    choice.remove();
    return { radio, label };
  });

  function reply() {
    if (!choices.length) return parseNumber(number_field.value) === null ? null : number_field.value;
    const picked = choices.find(({ radio }) => radio.checked);
    return picked ? picked.radio.value : null;
  }

  function tell(kind, text, hint) {
    root.dataset.state = kind;
    verdict.textContent = text;
    for (const [key, node] of hints) node.classList.toggle('sl-shown', key === hint);
  }

  function check(event) {
    event.preventDefault();
    const answer = reply();
    number_field.setAttribute('aria-invalid', answer === null && !choices.length);
    if (answer === null) {
      tell('asked', word(choices.length ? 'choice_please' : 'number_please'), null);
      return;
    }
    const found = grade(question, question.variants[variant], answer);
    right = found.right;
    const value = withUnit(question.variants[variant].shown.answer, question.unit);
    const text = !right ? word('wrong') : choices.length ? word('right_choice') : word('right', { value });
    tell(right ? 'right' : 'wrong', text, found.hint);
    scored();
  }

  function draw() {
    variant = another(question.variants.length, variant);
    root.dataset.variant = variant;
    for (const node of root.querySelectorAll('.sl-fresh')) {
      node.textContent = question.variants[variant].shown[node.dataset.name];
    }
    right = false;
    number_field.value = '';
    number_field.removeAttribute('aria-invalid');
    for (const { radio } of choices) radio.checked = false;
    const why = root.querySelector('details.sl-why');
    if (why) why.open = false;
    tell('', '', null);
    scored();
  }

  const answer = choices.length
    ? html('fieldset', {}, html('legend', {}, word('your_answer')), ...choices.map(({ label }) => label))
    : html('div', { class: 'sl-row' }, html('label', { for: `${id}-answer` }, word('your_answer')), number_field,
      html('span', { class: 'sl-unit' }, nameOf(question.unit)));
  const form = html('form', { onsubmit: check }, answer,
    html('div', { class: 'sl-row' },
      html('button', { type: 'submit' }, word('check')),
      html('button', { type: 'button', class: 'sl-quiet', onclick: draw }, word('fresh'))),
    says);
  root.insertBefore(form, root.querySelector('.sl-why'));
  return { draw, isRight: () => right };
}

mount('.sl-quiz', (root, data) => {
  const parts = [...root.querySelectorAll('.sl-question')];
  const score = html('strong', { role: 'status' });
  const started = [];
  const scored = () => {
    const right = started.filter((question) => question.isRight()).length;
    score.textContent = word('score', { right, count: parts.length });
  };
  for (const [index, part] of parts.entries()) {
    const question = data.find(({ key }) => key === part.dataset.key);
    started.push(startQuestion(part, question, index + 1, parts.length, scored));
  }
  const all = html('button', { type: 'button', class: 'sl-quiet' }, word('fresh_all'));
  const drawAll = () => started.forEach((question) => question.draw());
  all.addEventListener('click', drawAll);
  root.append(html('div', { class: 'sl-row sl-score' }, score, all));
  drawAll();
});

window.ServingLab = { ...window.ServingLab, grade }; // so that a test can hold it against the Python rule
