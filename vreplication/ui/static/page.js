// Takes over what has changed on this page: told by the server as it happens, else by asking every few seconds; asks
// before it acts.
// What must stay true: every word comes from the server, where it is escaped; nothing here makes HTML out of text; the
// place of the keyboard, the filter and what is unfolded survive an update; a stream that says nothing, or late, is
// given up, and the page asks again as it would without one.
"use strict";

const page = () => document.getElementById("page");
const by = (id) => document.getElementById(id);

// -- taking over a new version of the page

function morph(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) return old.replaceWith(now);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
    return;
  }
  if (old.hasAttribute("data-keep")) return;
  attributes(old, now);
  children(old, now);
}

function attributes(old, now) {
  const kept = (name) => (old.nodeName === "DETAILS" && name === "open") || name === "aria-pressed";
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
  for (const { name, value } of [...now.attributes])
    if (old.getAttribute(name) !== value && !kept(name)) old.setAttribute(name, value);
}

function children(old, now) {
  const named = new Map([...old.children].filter((c) => c.id).map((c) => [c.id, c]));
  let place = old.firstChild;
  for (const fresh of [...now.childNodes]) {
    let match = fresh.id ? named.get(fresh.id) : place;
    if (match && !fresh.id && match.id) match = null;
    if (!match) old.insertBefore(fresh, place);
    else {
      if (match !== place) old.insertBefore(match, place);
      place = match.nextSibling;
      morph(match, fresh);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// -- light or dark: as Airflow around us, else as it was last set there, else as the system

const outer = () => {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null;
  }
};

function kept() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function theme() {
  const around = outer();
  const name = around ? ["dark", "light"].find((each) => around.classList.contains(each)) : kept();
  document.documentElement.style.colorScheme = name === "dark" || name === "light" ? name : "";
  if (window.vreplicationCharts) window.vreplicationCharts.redraw();
}

if (outer()) new MutationObserver(theme).observe(outer(), { attributes: true, attributeFilter: ["class"] });
window.addEventListener("storage", (event) => event.key === "theme" && theme());
theme();

// -- times in the reader's zone, of 24 hours as Airflow's own

const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" };
const full = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", second: "2-digit", ...clock,
});
const brief = new Intl.DateTimeFormat(undefined, clock);
const withDay = new Intl.DateTimeFormat(undefined, { weekday: "short", ...clock });

function localize() {
  for (const time of document.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const hours = Math.abs(at - Date.now()) / 3600e3;
    const format = !time.hasAttribute("data-short") || hours > 6 * 24 ? full : hours > 12 ? withDay : brief;
    const text = format.format(at);
    if (time.textContent !== text) time.textContent = text;
  }
}

// -- the list's filter

// With its chip, which goes when nothing of it is left, a choice goes, too.
function filter() {
  const input = by("filter");
  if (!input) return;
  const pressed = document.querySelectorAll('.chip[data-state][aria-pressed="true"]');
  const chosen = new Set([...pressed].map((chip) => chip.dataset.state));
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of document.querySelectorAll(".row")) {
    const isIn = !chosen.size || chosen.has(row.dataset.state);
    row.hidden = !(isIn && words.every((word) => row.dataset.text.includes(word)));
    shown += !row.hidden;
  }
  if (by("none")) by("none").hidden = shown > 0;
}

document.addEventListener("input", (event) => event.target.id === "filter" && filter());

function choose(chip) {
  chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
  filter();
}

// -- looking again

let lastPhase = null;
let timer = 0;

function say(text) {
  const state = by("state");
  state.hidden = !text;
  if (state.textContent !== text) state.textContent = text;
  page().toggleAttribute("data-stale", Boolean(text));
}

function announce() {
  const phase = by("phase") && by("phase").textContent;
  if (lastPhase !== null && phase !== lastPhase) by("said").textContent = `Now: ${phase}`;
  lastPhase = phase;
}

function settle() {
  localize();
  filter();
  announce();
  if (window.vreplicationCharts) window.vreplicationCharts.look();
}

async function look() {
  clearTimeout(timer);
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (response.redirected && response.url.startsWith(new URL(document.body.dataset.root, location.href)))
      return location.replace(response.url);
    take(response.status, await response.text());
  } catch {
    say(`No answer from Airflow since ${brief.format(new Date())}; what is shown is old.`);
  }
  later(document.hidden ? 60000 : Number(page().dataset.poll) || 3000);
}

function later(millis) {
  clearTimeout(timer);
  timer = setTimeout(look, millis);
}

function take(status, html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const main = fresh.getElementById("page");
  // A page of ours with 403 says itself which right is missing.
  if (status === 401 || (status === 403 && !main))
    return say("Your login has ended, or your rights were changed; log in to Airflow again and reload.");
  if (!main) return say(`Airflow answered with an error (${status}); what is shown is old.`);
  const problem = main.querySelector("[data-problem]");
  if (status === 503 && problem && by("past")) return say(`${problem.textContent} What is shown is old.`);
  document.title = fresh.title;
  document.body.dataset.token = fresh.body.dataset.token || document.body.dataset.token;
  const places = near(document.activeElement);
  morph(page(), main);
  say("");
  settle();
  regain(places);
}

// -- the place of the keyboard

// An element, and where to go when it is gone: its row, the rows around it.
function near(element) {
  if (!element || element === document.body) return [];
  const row = element.closest(".row");
  return row ? [element, row, row.nextElementSibling, row.previousElementSibling] : [element];
}

// Of what was moved, removed or hidden the browser forgets that the keyboard was there.
function regain(places) {
  for (const place of places.length ? [...places, page().querySelector("h1")] : []) {
    const each = place && !place.isConnected && place.id ? by(place.id) : place;
    if (!each || !each.isConnected || each.closest("[hidden]")) continue;
    if (each !== document.activeElement) each.focus({ preventScroll: true });
    if (each === document.activeElement) return;
  }
}

// For `disabled`, which takes the keyboard away from what was pressed. False: it is held already.
function hold(button) {
  const isFree = !button.hasAttribute("aria-disabled");
  button.setAttribute("aria-disabled", "true");
  return isFree;
}

const free = (button) => button.removeAttribute("aria-disabled");

// -- told as it happens

const SILENCE = 10000;
const GIVEN_UP = 300000;
let stream = null;
let opens = 0;
let isHeard = false;
let last = 0;
let hasty = 0;

// While it is heard the page does not ask; silent for a while, it is as if there was none. Each stream ends after some
// time, and the browser opens the next one.
function listen() {
  if (stream || document.hidden || !page().hasAttribute("data-live") || Date.now() < opens) return;
  isHeard = false;
  stream = new EventSource(location.href);
  stream.addEventListener("page", ({ data }) => {
    const { status, html } = JSON.parse(data);
    take(status, html);
    heard();
  });
  stream.addEventListener("same", () => {
    say("");
    heard();
  });
  stream.addEventListener("error", ended);
}

// What comes in bursts was collected on its way, and is late.
function heard() {
  isHeard = true;
  hasty = Date.now() - last < 500 ? hasty + 1 : 0;
  last = Date.now();
  hasty > 3 ? deafen(GIVEN_UP) : later(SILENCE);
}

// One that ends unheard is of no use.
function ended() {
  if (!isHeard || stream.readyState === EventSource.CLOSED) deafen(GIVEN_UP);
  isHeard = false;
}

function deafen(millis = 0) {
  if (stream) stream.close();
  stream = null;
  opens = Date.now() + millis;
  document.hidden ? later(60000) : look();
}

setInterval(listen, 1000);

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return deafen();
  look();
  listen();
});
window.addEventListener("pagehide", () => {
  if (stream) stream.close();
  stream = null;
});

// Inside of Airflow's frame the browser shows no sign of its own that it loads.
document.addEventListener("click", (event) => {
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!isPlain || !event.target.closest("a[href]")) return;
  clearTimeout(timer);
  if (stream) stream.close();
  say("Loading …");
});
window.addEventListener("pageshow", (event) => event.persisted && look());

// -- acts

let asked = null;
let openers = [];

function ask(button) {
  asked = { ...button.dataset };
  openers = near(button);
  by("ask-fields").replaceChildren(...fields(JSON.parse(asked.fields || "[]")));
  by("ask-title").textContent = button.dataset.question;
  by("ask-will").textContent = button.dataset.will;
  by("ask-wont").textContent = button.dataset.wont;
  by("ask-yes").textContent = by("ask-fields").firstChild ? "Set" : button.dataset.yes || `${button.dataset.label} it`;
  by("ask-yes").className = button.classList.contains("grave") ? "strong grave" : "strong";
  free(by("ask-yes"));
  by("ask-problem").hidden = true;
  by("ask").showModal();
  (by("ask-fields").querySelector("input") || by("ask-no")).focus();
}

function field({ name, label, value, least, most, shape }) {
  const made = document.createElement("label");
  const input = document.createElement("input");
  if (shape) {
    // As text: a browser says '' of a number that it does not like, and '' takes a limit away.
    Object.assign(input, { type: "text", name, defaultValue: value, placeholder: shape, autocomplete: "off" });
    input.dataset.off = "";
    made.append(label, input);
    return made;
  }
  Object.assign(input, { type: "number", name, defaultValue: value, min: least, max: most, required: true });
  made.append(`${label} (${least.toLocaleString()} to ${most.toLocaleString()})`, input);
  return made;
}

// Numbers first; what few will need is folded, unless it is in force.
function fields(asked) {
  const limits = asked.filter((each) => each.shape);
  const made = asked.filter((each) => !each.shape).map(field);
  if (!limits.length) return made;
  const folded = document.createElement("details");
  const inner = document.createElement("div");
  const head = document.createElement("summary");
  head.textContent = "What holds it back (an empty field: nothing)";
  inner.className = "fields";
  inner.append(...limits.map(field));
  // The shape of one that has a default shows it.
  folded.open = limits.some((each) => each.value && each.value !== each.shape);
  folded.append(head, inner);
  return [...made, folded];
}

// What was typed, as it was typed: the server has the words for what is wrong with it.
function values() {
  const inputs = [...by("ask-fields").querySelectorAll("input")].filter((i) => i.value !== i.defaultValue);
  return Object.fromEntries(inputs.map((i) => [i.name, "off" in i.dataset ? i.value.trim() || "off" : i.value]));
}

function told(text, isBad = false) {
  by("done").textContent = text;
  by("done").classList.toggle("problem", isBad);
  by("done").hidden = false;
  clearTimeout(told.timer);
  told.timer = setTimeout(() => (by("done").hidden = true), 20000);
}

// Meanwhile another question may have been opened.
async function act() {
  const mine = asked;
  const isOpen = () => by("ask").open && asked === mine;
  const { root, token } = document.body.dataset;
  try {
    const headers = { "X-CSRF-Token": token, "Content-Type": "application/json" };
    const body = by("ask-fields").firstChild ? JSON.stringify(values()) : null;
    const response = await fetch(root + mine.url, { method: "POST", headers, body });
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.detail || `Airflow answered ${response.status}.`);
    if (isOpen()) by("ask").close();
    told(answer.done);
    await look();
  } catch (error) {
    if (!isOpen()) return told(error.message, true);
    by("ask-problem").textContent = error.message;
    by("ask-problem").hidden = false;
    free(by("ask-yes"));
  }
}

by("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (hold(by("ask-yes"))) act();
});

by("ask").addEventListener("close", () => regain(openers));

// From its last control to its first and back: the browser itself goes on to what is around Airflow's frame.
by("ask").addEventListener("keydown", (event) => {
  // Held down since it opened the dialog, it is no answer.
  if (event.key === "Enter" && event.repeat) event.preventDefault();
  if (event.key !== "Tab") return;
  const all = by("ask").querySelectorAll("input, summary, button");
  const ends = [all[0], all[all.length - 1]];
  const [first, last] = event.shiftKey ? ends : ends.reverse();
  if (document.activeElement !== first) return;
  event.preventDefault();
  last.focus();
});

let isUnderWay = false;

// What can be taken back by the button beside it is not asked about; a key that is held down is one press.
async function atOnce(button) {
  if (isUnderWay) return;
  isUnderWay = true;
  asked = { ...button.dataset };
  by("ask-fields").replaceChildren();
  await act();
  isUnderWay = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("now" in button.dataset) atOnce(button);
  else if (button.dataset.url) ask(button);
  else if (button.dataset.state) choose(button);
  else if (button.id === "ask-no") by("ask").close();
});

settle();
later(Number(page().dataset.poll) || 3000);
listen();
