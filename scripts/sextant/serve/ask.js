"use strict";
const form = document.getElementById("ask");
const part = (id) => document.getElementById(id);
const optionFields = () => [...form.querySelectorAll("[data-option]")].filter((field) => !field.closest("[hidden]"));
let asking = null;
let watching = null;

/** The value of a group of radio buttons, or of a list. */
function chosen(group) {
  const button = form.querySelector(`input[name="${group}"]:checked`);
  return button ? button.value : part(group).value;
}

/** Show the fields of the ways that are chosen. */
function showWays() {
  for (const block of form.querySelectorAll("[data-way]")) {
    const [group, values] = block.dataset.way.split("=");
    block.hidden = !values.split(" ").includes(chosen(group));
  }
}

class FieldError extends Error {
  constructor(field, message) { super(message); this.field = field; }
}

/** A file's content in base64. */
async function inBase64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let start = 0; start < bytes.length; start += 32768) text += String.fromCharCode(...bytes.subarray(start, start + 32768));
  return btoa(text);
}

/** A log that is dropped onto the page, as the server takes it. */
async function traceOf(field) {
  const [file] = field.files;
  if (!file) throw new FieldError(field, "Choose the file of the trace.");
  if (file.name.endsWith(".parquet")) return { base64: await inBase64(file) };
  const trace = { name: file.name, text: await file.text() };
  if (part("trace-format").value) trace.format = part("trace-format").value;
  else if (part("trace-columns").value.trim()) trace.columns = part("trace-columns").value.trim();
  return trace;
}

/** Lines of a GPU profile and its price, as rows. */
function rowsOf(field) {
  return field.value.trim().split("\n").map((line, index) => {
    const [profile, price] = line.split(/[,;\t]/).map((cell) => cell.trim());
    if (index === 0 && profile === "gpu_profile_id") return null;
    if (!profile || !price || !Number.isFinite(Number(price)))
      throw new FieldError(field, `Line ${index + 1} has no GPU profile and price. Write 1xH100-80GB, 2.50`);
    return { gpu_profile_id: profile, usd_per_hour: Number(price) };
  }).filter(Boolean);
}

/** The object of a config.json; its file's name is that of the LLM. */
function configOf(field) {
  let config;
  try { config = JSON.parse(field.value); } catch (error) {
    throw new FieldError(field, `This is not JSON: ${error.message}`);
  }
  if (config === null || typeof config !== "object") throw new FieldError(field, "This is no config.json.");
  const [file] = part("config-file").files;
  const name = file ? file.name.replace(/\.json$/, "") : "";
  return config._name_or_path || !name || name === "config" ? config : { ...config, _name_or_path: name };
}

/** The value of a field as the server takes it; undefined where it is left empty. */
async function valueOf(field) {
  const text = field.value.trim();
  const kind = field.dataset.kind;
  if (kind === "flag") return field.checked ? true : undefined;
  if (kind === "trace") return traceOf(field);
  if (kind === "texts") {
    if (!field.files.length) throw new FieldError(field, "Choose the files of the metrics.");
    return Promise.all([...field.files].map((file) => file.text()));
  }
  if (kind === "json") {
    if (!text) throw new FieldError(field, "Paste the config.json, or choose its file.");
    return configOf(field);
  }
  if (!text) return undefined;
  if (kind === "prices") return rowsOf(field);
  if (kind === "number") {
    if (!Number.isFinite(Number(text))) throw new FieldError(field, `${text} is no number.`);
    return Number(text);
  }
  if (kind === "limit") {
    const percentile = form.querySelector(`[data-percentile="${field.dataset.option}"]`).value;
    return percentile === "50" ? text : `p${percentile}:${text}`;
  }
  return text;
}

/** The question that the form states: its command and its options. */
async function question() {
  const body = {};
  for (const field of optionFields()) {
    const value = await valueOf(field);
    if (value !== undefined) body[field.dataset.option] = value;
  }
  const provider = part("provider").value;
  if (provider && provider !== "own") body.prices = provider;
  return { command: chosen("load") === "metrics" ? "rightsize" : "recommend", body };
}

function showError(message, field) {
  part("error").textContent = message;
  part("error").hidden = false;
  if (!field) return part("error").focus();
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", "error");
  for (let block = field.closest("details"); block; block = block.parentElement.closest("details")) block.open = true;
  field.focus();
}

/** The first visible field of those that an error of the library names. */
function fieldOf(names) {
  const keywords = (names || "").split(/[,.]\s*/);
  return optionFields().find((field) => keywords.includes(field.dataset.option));
}

function clearErrors() {
  part("error").hidden = true;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

/** Say that the answer is computed, and for how long, until the returned function is called. */
function think() {
  const start = performance.now();
  const say = () => { part("status").textContent = `Thinking: ${Math.round((performance.now() - start) / 1000)} s`; };
  say();
  const clock = setInterval(say, 1000);
  for (const id of ["thinking", "cancel"]) part(id).hidden = false;
  form.querySelector("[type=submit]").disabled = true;
  return () => {
    clearInterval(clock);
    for (const id of ["thinking", "cancel"]) part(id).hidden = true;
    form.querySelector("[type=submit]").disabled = false;
    part("status").textContent = "";
  };
}

function link(folder, name, words, isDownload) {
  const anchor = document.createElement("a");
  anchor.href = `${folder}/${name}`;
  anchor.textContent = words;
  if (isDownload) anchor.download = name; else anchor.target = "_blank";
  return anchor;
}

/** Show an answer: its page, its files, the command that gives the same. */
function show(answered) {
  const folder = `/answers/${answered.id}`;
  const links = [link(folder, "answer.html", "Open as a page", false), link(folder, "answer.json", "JSON", true),
    link(folder, "question.zip", "The question", true)];
  if (answered.bundles.length) {
    const words = document.createElement("span");
    words.className = "soft";
    words.textContent = "To start it:";
    links.push(words, ...answered.bundles.map((target) => link(folder, `${target}.zip`, target, true)));
  }
  part("links").replaceChildren(...links);
  part("script").textContent = answered.script;
  part("frame").src = `${folder}/answer.html`;
  part("result").hidden = false;
  part("result").focus();
  part("result").scrollIntoView();
}

/** Make the frame as high as the page in it. */
function fit() {
  const page = part("frame").contentDocument;
  if (!page || !page.body) return;
  part("frame").style.setProperty("--margin", getComputedStyle(document.body).paddingLeft);
  const resize = () => { part("frame").style.height = `${page.body.offsetHeight + 4}px`; };
  if (watching) watching.disconnect();
  watching = new ResizeObserver(resize);
  watching.observe(page.body);
  resize();
}

async function ask(event) {
  event.preventDefault();
  if (asking) return;
  clearErrors();
  let done = () => {};
  try {
    const { command, body } = await question();
    asking = new AbortController();
    done = think();
    const how = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: asking.signal };
    const response = await fetch(`/answers/${command}`, how);
    const answered = await response.json();
    if (response.ok) show(answered);
    else showError(answered.error.message, fieldOf(answered.error.field));
  } catch (error) {
    if (error instanceof FieldError) showError(error.message, error.field);
    else if (error.name !== "AbortError") showError("The server does not answer. Is it still running?");
  } finally {
    done();
    asking = null;
  }
}

/** The input of files that a dropped file is for: the one it is dropped on, or by what it holds. */
async function inputFor(file, target) {
  const block = target.closest(".drop");
  if (block) return block.querySelector("input[type=file]");
  const start = await file.slice(0, 4096).text();
  if (/"(architectures|model_type)"/.test(start)) return part("config-file");
  return /^# (HELP|TYPE)|"resultType"/m.test(start) ? part("metrics") : part("trace");
}

/** Take dropped files as if they were chosen, and show where they went. */
async function drop(event) {
  event.preventDefault();
  const files = [...event.dataTransfer.files];
  if (!files.length) return;
  const input = await inputFor(files[0], event.target);
  const taken = new DataTransfer();
  for (const file of input.multiple ? files : files.slice(0, 1)) taken.items.add(file);
  input.files = taken.files;
  const [group, value] = input.closest("[data-way]").dataset.way.split("=");
  form.querySelector(`input[name="${group}"][value="${value}"]`).checked = true;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

async function copy() {
  const text = part("script");
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text.textContent);
    part("copy").textContent = "Copied";
  } else window.getSelection().selectAllChildren(text); // an address without TLS has no clipboard
}

form.addEventListener("submit", ask);
form.addEventListener("change", showWays);
part("cancel").addEventListener("click", () => asking && asking.abort());
part("frame").addEventListener("load", fit);
part("config-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) part("config").value = await file.text();
});
part("copy").addEventListener("click", copy);
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
for (const end of ["dragleave", "drop"]) document.addEventListener(end, () => document.body.classList.remove("over"));
document.addEventListener("drop", drop);
showWays();
