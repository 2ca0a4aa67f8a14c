// Filters, and the fields of what one points at. The pictures are complete without this script.
'use strict';
const box = document.getElementById('fields');
let pinned = null;

const pointed = target => {
  const label = target.closest('[data-of]');
  return label ? document.getElementById(label.dataset.of) : target.closest('[data-t]');
};

function show(group) {
  box.textContent = group ? group.dataset.t : '';
  box.hidden = !group;
}

function pin(group) {
  if (pinned) pinned.classList.remove('pinned');
  pinned = group === pinned ? null : group;
  if (pinned) pinned.classList.add('pinned');
  show(pinned);
}

document.addEventListener('mouseover', event => {
  const group = pointed(event.target);
  if (group) show(group);
  else if (!event.target.closest('#fields')) show(pinned);
});
document.addEventListener('click', event => {
  const group = pointed(event.target);
  if (group) pin(group);
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') pin(pinned);
});

// Rows in which nothing is left to see take no room.
function place(svg) {
  const before = svg.dataset.rows.split(' ').map(Number);
  const head = Number(svg.dataset.head);
  const used = new Set();
  for (const group of svg.querySelectorAll('g[data-rows]:not(.off)')) {
    for (const row of group.dataset.rows.split(' ')) used.add(Number(row));
  }
  let y = head;
  const now = before.map((old, row) => {
    if (used.has(row)) y += old - (row ? before[row - 1] : head);
    return y;
  });
  const bottom = y + 20;
  const at = row => (row === 'top' ? head - 12 : now[row] ?? bottom);
  const was = row => (row === 'top' ? head - 12 : before[row] ?? bottom);
  for (const line of svg.querySelectorAll('line[data-a]')) {
    line.setAttribute('y1', at(line.dataset.a) + Number(line.dataset.o || 0));
    line.setAttribute('y2', at(line.dataset.b) + Number(line.dataset.p || 0));
  }
  for (const thing of svg.querySelectorAll('text[data-a], circle[data-a]')) {
    const row = thing.dataset.a;
    thing.setAttribute('transform', `translate(0 ${at(row) - was(row)})`);
    if (thing.classList.contains('time')) thing.classList.toggle('off', !used.has(Number(row)));
  }
  for (const glyph of svg.querySelectorAll('g[data-at]')) {
    glyph.setAttribute('transform', `translate(${glyph.dataset.at.split(' ')[0]} ${at(glyph.dataset.a)})`);
  }
  const height = bottom + Number(svg.dataset.foot);
  svg.setAttribute('height', height);
  svg.setAttribute('viewBox', `0 0 ${svg.getAttribute('width')} ${height}`);
  svg.querySelector('.legend').setAttribute('transform', `translate(0 ${height - 14})`);
}

function filter() {
  const off = [];
  for (const choice of document.querySelectorAll('input[data-hides]')) {
    if (!choice.checked) off.push('.' + choice.dataset.hides);
  }
  for (const svg of document.querySelectorAll('svg.chart')) {
    for (const thing of svg.querySelectorAll('.off')) thing.classList.remove('off');
    if (off.length) for (const thing of svg.querySelectorAll(off.join())) thing.classList.add('off');
    place(svg);
  }
}

// The names of the lifelines stay in sight.
function keepNames() {
  const top = document.getElementById('filters').getBoundingClientRect().bottom;
  for (const svg of document.querySelectorAll('svg.chart')) {
    const { y, height } = svg.getBoundingClientRect();
    const down = Math.max(0, Math.min(top - y, height - 60));
    svg.querySelector('.names').setAttribute('transform', `translate(0 ${down})`);
  }
}

document.addEventListener('scroll', keepNames, { passive: true });
// On paper a picture is cut into pieces that each fit a page, between two rows.
addEventListener('beforeprint', () => {
  document.querySelectorAll('svg.chart').forEach((svg, number) => {
    svg.querySelector('.names').removeAttribute('transform');
    svg.id = `chart-${number}`;
    const [width, height] = [Number(svg.getAttribute('width')), Number(svg.getAttribute('height'))];
    const piece = Math.floor((width * 1.1) / 20) * 20;
    for (let y = 0; y < height; y += piece) {
      const tall = Math.min(piece, height - y);
      const page = `<svg class="piece" viewBox="0 ${y} ${width} ${tall}"><use href="#${svg.id}"/></svg>`;
      document.getElementById('pieces').insertAdjacentHTML('beforeend', page);
    }
  });
});
addEventListener('afterprint', () => document.getElementById('pieces').replaceChildren());
document.getElementById('filters').addEventListener('change', filter);
filter();
