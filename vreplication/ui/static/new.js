// The form of a new migration: asks the server for the table's definition and for the plan, and Airflow for the run.
// What must stay true: what is triggered is what was planned (`data-conf`), by Airflow's own API and the person's own
// login; every word comes from the server, where it is escaped.
"use strict";

const form = by("new-form");
const named = (name) => by(`f-${name}`);
let listed = null;
let shown = null;
let number = 0;

// -- what is asked for

function given() {
  const fields = [...form.elements].filter((each) => each.name && each.value !== (each.dataset.default ?? null));
  return Object.fromEntries(fields.map((each) => [each.name, each.value.trim()]).filter(([, value]) => value));
}

async function answered(path, body) {
  const headers = { "X-CSRF-Token": document.body.dataset.token, "Content-Type": "application/json" };
  const response = await fetch(document.body.dataset.root + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw await problem(response);
  return new DOMParser().parseFromString(await response.text(), "text/html").getElementById("page");
}

async function reason(response) {
  const { detail } = await response.json().catch(() => ({}));
  return typeof detail === "string" ? detail : `Airflow answered ${response.status}.`;
}

async function problem(response) {
  const { detail, field } = await response.clone().json().catch(() => ({}));
  return Object.assign(new Error(detail || (await reason(response))), { field });
}

// In place: the sentence stands below the field that it is about, which is unfolded; else at the end of the form.
function wrong(text, name) {
  form.querySelectorAll("[aria-invalid]").forEach((each) => {
    each.removeAttribute("aria-invalid");
    each.removeAttribute("aria-errormessage");
  });
  const field = text && name && named(name);
  if (field) field.closest(".field").append(by("new-problem"));
  else form.querySelector(".buttons").before(by("new-problem"));
  complain("new-problem", text);
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", "new-problem");
  if (field.closest("details")) field.closest("details").open = true;
}

function complain(id, text) {
  by(id).textContent = text;
  by(id).hidden = !text;
}

// -- the table

async function list() {
  const conn = named("conn_id").value;
  if (!conn || listed === conn) return;
  listed = conn;
  const response = await fetch(`${document.body.dataset.root}api/tables?conn_id=${encodeURIComponent(conn)}`);
  const tables = response.ok ? (await response.json()).tables : [];
  if (listed !== conn) return;
  by("tables").replaceChildren(...tables.map((name) => Object.assign(document.createElement("option"), { value: name })));
  if (!response.ok) wrong(await reason(response), "conn_id");
}

async function look_at_table() {
  const { conn_id = "", table = "" } = given();
  const asked = `${conn_id} ${table}`;
  if (asked === shown) return;
  shown = asked;
  if (!conn_id || !table) return by("current").replaceChildren();
  try {
    const part = await answered("new", { conn_id, table });
    if (shown !== asked) return;
    by("current").replaceChildren(...part.childNodes);
    wrong("");
  } catch (error) {
    if (shown !== asked) return;
    by("current").replaceChildren();
    wrong(error.message, error.field);
  }
}

// -- the plan

async function plan() {
  const button = by("new-plan");
  const asked = given();
  const missing = { conn_id: "Choose a server.", table: "Name the table.", alter: "Say what to change." };
  const first = Object.keys(missing).find((name) => !asked[name]);
  if (first) {
    wrong(missing[first], first);
    return named(first).focus();
  }
  if (!hold(button)) return;
  const mine = ++number;
  wrong("");
  by("planned").replaceChildren();
  button.textContent = "Planning …";
  try {
    const part = await answered("new", asked);
    if (mine === number) show(part);
  } catch (error) {
    if (mine !== number) return;
    wrong(error.message, error.field);
    named(error.field)?.focus();
  } finally {
    free(button);
    button.textContent = "Show the plan";
  }
}

function show(part) {
  by("planned").replaceChildren(...part.childNodes);
  by("new-plan").classList.toggle("strong", !by("start"));
  by("plan-verdict").focus();
  by("plan").scrollIntoView({ block: "start" });
  if (by("start")) paused().then((is) => by("unpause") && (by("unpause").hidden = !is));
}

function outdate() {
  number += 1;
  by("new-plan").classList.add("strong");
  if (!by("start")) return;
  by("start").disabled = true;
  by("start").classList.remove("strong");
  by("plan-old").hidden = false;
}

// -- the run

const airflow = (path, method, body) =>
  fetch(`${document.body.dataset.root}../api/v2/dags/${form.dataset.dag}${path}`, {
    method, headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body),
  });

async function paused() {
  const response = await airflow("", "GET").catch(() => null);
  return Boolean(response && response.ok && (await response.json()).is_paused);
}

async function start() {
  const button = by("start");
  const { workflow, conn, conf } = button.dataset;
  if (!hold(button)) return;
  complain("start-problem", "");
  try {
    if (!by("unpause").hidden && named("unpause").checked) {
      const response = await airflow("?update_mask=is_paused", "PATCH", { is_paused: false });
      if (!response.ok) throw new Error(`The DAG stays paused, and nothing was started: ${await reason(response)}`);
    }
    const body = { dag_run_id: workflow, logical_date: null, conf: JSON.parse(conf) };
    const response = await airflow("/dagRuns", "POST", body);
    if (!response.ok) throw new Error(`Nothing was started: ${await reason(response)}`);
    say("Loading …");
    location.assign(`${document.body.dataset.root}workflows/${encodeURIComponent(workflow)}?conn_id=${encodeURIComponent(conn)}`);
  } catch (error) {
    complain("start-problem", error instanceof TypeError ? "No answer from Airflow. Start it again: it is not started twice." : error.message);
    free(button);
  }
}

if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    plan();
  });
  form.addEventListener("input", () => {
    outdate();
    by("window").hidden = named("cutover").value !== "window";
    if (by("window").hidden) named("cutover_window").value = "";
  });
  form.addEventListener("change", () => {
    list();
    look_at_table();
  });
  document.addEventListener("click", (event) => event.target.id === "start" && start());
  list();
  look_at_table();
}
