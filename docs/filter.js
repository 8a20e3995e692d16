// On the index of rules: show the rows that hold the words typed and have the result chosen.
document.addEventListener("DOMContentLoaded", () => {
  const first = document.querySelector("h2#files-and-trials");
  if (!first) return;
  const form = document.createElement("form");
  form.className = "filter";
  form.innerHTML =
    '<label>Words <input type="search" placeholder="wrap_model"></label> <label>Result <select>' +
    ["any", "converted", "review", "blocked", "error"].map((name) => `<option>${name}</option>`).join("") +
    '</select></label> <output aria-live="polite"></output>';
  first.before(form);
  const [words, result, shown] = form.querySelectorAll("input, select, output");
  const tables = [...document.querySelectorAll("article table")].filter((table) => table.tHead.textContent.includes("result"));
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const table of tables) {
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        const results = row.cells[2].textContent;
        row.hidden = !(wanted.every((word) => text.includes(word)) && (result.value === "any" || results.includes(result.value)));
        count += !row.hidden;
      }
    }
    shown.textContent = `${count} rules`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
});
