// Makes promptfoo_vectors.json: what promptfoo's handlers say of fixed answers.
//
// node testdata/generate_promptfoo_vectors.mjs PROMPTFOO JS_ROUGE, the unpacked npm packages promptfoo 0.123.1 and
// js-rouge 3.2.3. Single regions of promptfoo's bundle are taken, so its dependencies are not needed.
import fs from "node:fs";
import path from "node:path";
import util from "node:util";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const [promptfoo, jsRouge] = process.argv.slice(2).map(folder => path.resolve(folder));
const require = createRequire(import.meta.url);
const rouge = require(path.join(jsRouge, "dist/rouge.js"));
const sources = path.join(promptfoo, "dist/src");
const bundle = fs.readdirSync(sources).find(name => /^evaluator-.*\.js$/.test(name));
const text = fs.readFileSync(path.join(sources, bundle), "utf8");
const region = name => text.split(`//#region src/assertions/${name}.ts\n`)[1].split("//#endregion")[0];
const regions = ["ngrams", "bleu", "gleu", "contains", "equals", "rouge", "wordCount", "startsWith"].map(region).join("\n");
const invariant = (holds, message) => { if (!holds) throw new Error(message); };
const handlers = new Function("invariant", "rouge", "util", `${regions}
return { bleu: handleBleuScore, gleu: handleGleuScore, "rouge-n": handleRougeScore, contains: handleContains,
  icontains: handleIContains, "contains-any": handleContainsAny, "contains-all": handleContainsAll,
  "icontains-any": handleIContainsAny, "icontains-all": handleIContainsAll, equals: handleEquals,
  "word-count": handleWordCount, "starts-with": handleStartsWith };`)(invariant, rouge, util);

const TEXTS = [
  ["The cat sat on the mat.", "The cat sat on the mat."],
  ["A cat is sitting on a mat", ["The cat sat on the mat.", "There is a cat on the mat"]],
  ["the the the the", "the cat"],
  ["", "something"],
  ["Ünïcode naïve café", "Unicode naïve café"],
  ["It costs $3.50, or 1,000.5 yen -- isn't it?", "It cost 3.50 dollars (or 1,000.5 yen), isn't it?"],
  ["I cannot say: we'll see... the U.S. 'end'.", "I can not say; we will see the U.S. end."],
  ["one two three four five", ["one two three", "three four five six"]],
  ["Don't stop, they're here!", "do not stop they are here"],
];
const CASES = [
  ["contains-any", "hello, bye", "hello"],
  ["contains-any", "\"a, b\", c", "xa, by"],
  ["contains-any", "\"a, b\", c", "ab"],
  ["contains-any", ["a", 5], "it is 5"],
  ["contains-all", "a, b", "b a"],
  ["contains-all", "a, b", "b"],
  ["contains-all", [], "b"],
  ["icontains-any", "HELLO, BYE", "bye"],
  ["icontains-all", "A,, B", "b"],
  ["contains", 5, "55"],
  ["icontains", "ÄB", "xäb"],
  ["equals", 5, "5"],
  ["equals", "a", " a"],
  ["equals", { a: [1, { b: 2 }] }, "{\"a\":[1.0,{\"b\":2}]}"],
  ["equals", { a: 1 }, "no"],
  ["equals", true, "true"],
  ["word-count", 3, "a b  c\n"],
  ["word-count", "3", "a b"],
  ["word-count", { min: 2, max: 3 }, "a b c d"],
  ["word-count", { max: 3 }, ""],
  ["starts-with", "Yes", "Yes!"],
];
const said = async (type, value, answer, inverse) => {
  const { pass, score } = await handlers[type]({
    assertion: { type, value }, baseType: type, renderedValue: value, outputString: answer, inverse,
  });
  return { type: inverse ? `not-${type}` : type, value, answer, pass, score };
};
const vectors = [];
for (const [answer, value] of TEXTS) {
  for (const type of ["bleu", "gleu", "rouge-n"]) {
    if (type === "rouge-n" && Array.isArray(value)) continue;
    vectors.push(await said(type, value, answer, false), await said(type, value, answer, true));
  }
}
for (const [type, value, answer] of CASES) {
  vectors.push(await said(type, value, answer, false), await said(type, value, answer, true));
}
const folder = path.dirname(fileURLToPath(import.meta.url));
fs.writeFileSync(path.join(folder, "promptfoo_vectors.json"), JSON.stringify(vectors, null, 1) + "\n");
