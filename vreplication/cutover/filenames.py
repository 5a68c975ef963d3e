"""Table names as InnoDB's own dictionary spells them: in the character set that both servers use for file names.

What must stay true: `encode` gives what the server writes, for every character that a name may hold (a test compares
all 63,487 of them with MariaDB's own conversion; MySQL has none that we could ask). ASCII letters, digits and `_` stand
for themselves; letters of the alphabets below are `@` and two characters; everything else is `@` and four hex digits.
"""

from __future__ import annotations

from functools import cache

_LETTERS = "ghijklmnopqrstuvwxyz"
_SECONDS = "0123456789abcdefghijklmnopqrstuvwxyz"
# A character's place is its code: first the 200 codes of a digit and a letter (@0g, @0h … @9z), then those of a letter
# and a digit or letter (@g0, @h0 … @zz). A blank is a code that stands for nothing. Unicode's own pairs of lower and
# upper case are no substitute for the second table: they have grown since, the codes have not.
_LOWER = (
    "àáâãäåæçèéêëìíîïðñòóôõößøùúûüýþÿāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįıĳĵķĸĺļľŀłńņňŉŋōŏőœŕŗřśŝşšţťŧũūŭůűųŵŷźżžſ   "
    "                  ΐ άέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώ ϐϑ   ϕϖϗϙϛϝϟϡϣϥϧϩϫϭϯϰϱϲϳϵ϶ϸϻϼ               "
    "абвгдежзийклмнопрстуфхцчшщъыьэюяѐёђѓєѕіїјљњћќѝўџѡѣѥѧѩѫѭѯѱѳѵѷѹѻѽѿҁ ҋҍҏґғҕҗҙқҝҟҡңҥҧҩҫҭүұҳҵҷҹһҽҿ ӂӄӆӈӊӌ"
    "ӎ ӑӓӕӗәӛӝӟӡӣӥӧөӫӭӯӱӳӵӷӹ      ԁԃԅԇԉԋԍԏ    աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօ  ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅺⅻⅼⅽⅾⅿ    "
    "ƀƃƅƈƌƍƒƕƙƚƛƞơƣƥƨƪƫƭưƴƶƹƺƻ ƾƽǆǉǌǎǐǒǔǖǘǚǜǝǟǡǣǥǧǩǫǭǯǰǳǵǹǻǽǿȁȃȅȇȉȋȍȏȑȓȕȗșțȝȟȡȣȥȧȩȫȭȯȱȳȴȵȶȷȸȹ ȼ ȿɀ       "
    "       ɐɑɒɓɔɕɖɗɘəɚɛɜɝɞɟɠɡɢɣɤɥɦɧɨɩɪɫɬɭɮɯɰɱɲɳɴɵɶɷɸɹɺɻɼɽɾɿʀʁʂʃʄʅʆʇʈʉʊʋʌʍʎʏʐʑʒʓʔʕʖʗʘʙʚʛʜʝʞʟʠʡʢʣʤʥʦʧʨʩʪʫʬ"
    "ʭʮʯ                 ḁḃḅḇḉḋḍḏḑḓḕḗḙḛḝḟḡḣḥḧḩḫḭḯḱḳḵḷḹḻḽḿṁṃṅṇṉṋṍṏṑṓṕṗṙṛṝṟṡṣṥṧṩṫṭṯṱṳṵṷṹṻṽṿẁẃẅẇẉẋẍẏẑẓẕẖẗẘẙẚ"
    "ẛ    ạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ          ἀἁἂἃἄἅἆἇἐἑἒἓἔἕ    ἠἡἢἣἤἥἦἧἰἱἲἳἴἵἶἷὀὁὂὃὄὅ"
    "    ὐὑὒὓὔὕὖὗ    ὠὡὢὣὤὥὦὧὰάὲέὴήὶίὸόὺύὼώ  ᾀᾁᾂᾃᾄᾅᾆᾇᾐᾑᾒᾓᾔᾕᾖᾗᾠᾡᾢᾣᾤᾥᾦᾧᾰᾱᾲᾳᾴ ᾶᾷῂῃῄ ῆῇῐῑῒΐ  ῖῗ ῠῡῢΰῤῥῦῧ  ῲῳ "
    " ῶῷ"
)
_UPPER = (
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ ØÙÚÛÜÝÞŸĀĂĄĆĈĊČĎĐĒĔĖĘĚĜĞĠĢĤĦĨĪĬĮ ĲĴĶ ĹĻĽĿŁŃŅŇ ŊŌŎŐŒŔŖŘŚŜŞŠŢŤŦŨŪŬŮŰŲŴŶŹŻŽ    "
    "                    ΆΈΉΊ Α ΓΔΕΖΗ Ι ΛΜΝΞΟ Ρ  ΤΥ ΧΨΩΪΫΌΎΏ ΒΘϒϓϔΦΠ  ϚϜϞϠϢϤϦϨϪϬϮΚ Σ      ϽϾϿ            "
    "АБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯЀЁЂЃЄЅІЇЈЉЊЋЌЍЎЏѠѢѤѦѨѪѬѮѰѲѴѶѸѺѼѾҀ ҊҌҎҐҒҔҖҘҚҜҞҠҢҤҦҨҪҬҮҰҲҴҶҸҺҼҾӀӁӃӅӇӉӋ"
    "Ӎ ӐӒӔӖӘӚӜӞӠӢӤӦӨӪӬӮӰӲӴӶӸ      ԀԂԄԆԈԊԌԎ    ԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀՁՂՃՄՅՆՇՈՉՊՋՌՍՎՏՐՑՒՓՔՕ  ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅬⅭⅮⅯ    "
    " ƂƄƇƋ ƑǶƘȽ ȠƠƢƤƧ  ƬƯƳƵƸ    ƼǄǇǊǍǏǑǓǕǗǙǛƎǞǠǢǤǦǨǪǬǮ ǱǴǸǺǼǾȀȂȄȆȈȊȌȎȐȒȔȖȘȚȜȞ ȢȤȦȨȪȬȮȰȲ      ȺȻȾ         "
    "          ƁƆ ƉƊ Ə Ɛ    Ɠ  Ɣ    ƗƖ     Ɯ  Ɲ  Ɵ          Ʀ  Ʃ    Ʈ ƱƲ      Ʒ Ɂ                        "
    "                    ḀḂḄḆḈḊḌḎḐḒḔḖḘḚḜḞḠḢḤḦḨḪḬḮḰḲḴḶḸḺḼḾṀṂṄṆṈṊṌṎṐṒṔṖṘṚṜṞ ṢṤṦṨṪṬṮṰṲṴṶṸṺṼṾẀẂẄẆẈẊẌẎẐẒẔ     "
    "Ṡ    ẠẢẤẦẨẪẬẮẰẲẴẶẸẺẼẾỀỂỄỆỈỊỌỎỐỒỔỖỘỚỜỞỠỢỤỦỨỪỬỮỰỲỴỶỸ          ἈἉἊἋἌἍἎἏἘἙἚἛἜἝ    ἨἩἪἫἬἭἮἯἸἹἺἻἼἽἾἿὈὉὊὋὌὍ"
    "     Ὑ Ὓ Ὕ Ὗ    ὨὩὪὫὬὭὮὯᾺΆῈΈῊΉῚΊῸΌῪΎῺΏ  ᾈᾉᾊᾋᾌᾍᾎᾏᾘᾙᾚᾛᾜᾝᾞᾟᾨᾩᾪᾫᾬᾭᾮᾯᾸᾹ ᾼ     ῌ    ῘῙ       ῨῩ   Ῥ     ῼ "
    "   "
)


def encode(name: str) -> str:
    """`name` as information_schema.innodb_tables (innodb_sys_tables) spells it."""
    codes = _codes()
    return "".join(codes.get(char) or _plain(char) for char in name)


def _plain(char: str) -> str:
    if char == "_" or (char.isascii() and char.isalnum()):
        return char
    return f"@{ord(char):04x}"


@cache
def _codes() -> dict[str, str]:
    pairs = [d + letter for d in "0123456789" for letter in _LETTERS]
    pairs += [letter + second for second in _SECONDS for letter in _LETTERS]
    found = {char: f"@{code}" for char, code in zip(_LOWER, pairs, strict=False)}
    found |= {char: "@" + _raised(code) for char, code in zip(_UPPER, pairs, strict=False)}
    found.pop(" ")
    return found | _circled_and_wide()


def _raised(code: str) -> str:
    """The code of the upper case: its first letter is raised, the second only chooses an alphabet."""
    return code[0] + code[1].upper() if code[0].isdigit() else code[0].upper() + code[1]


def _circled_and_wide() -> dict[str, str]:
    found = {}
    for i in range(26):
        for case, circled, wide in ((65, 0x24B6, 0xFF21), (97, 0x24D0, 0xFF41)):
            found[chr(circled + i)] = f"@@{chr(case + i)}"
            found[chr(wide + i)] = f"@{chr(case + i)}@"
    return found
